// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "farandole/export.h"
#include "farandole/optim/lr_scheduler/formula_scheduler.h"

namespace farandole {

/// Linear warm-up (or decay): a factor on the initial learning rates that goes from start_factor to
/// end_factor in total_iters steps. Gradual warm-up: Goyal et al. 2017, arXiv:1706.02677, 2.2.
class FARANDOLE_API LinearLR final : public FormulaScheduler {
 public:
  /// Throws InvalidArgument unless 0 < start_factor <= 1, 0 <= end_factor <= 1, total_iters >= 1.
  explicit LinearLR(ScheduledOptimizer optimizer, double start_factor = 1.0 / 3,
                    double end_factor = 1.0, int64_t total_iters = 5);
  ~LinearLR() override;

 protected:
  std::vector<double> get_lr() override;
  std::vector<double> get_closed_form_lr() override;
  void name_fields(SchedulerFields& fields) override;

 private:
  double start_factor_;
  double end_factor_;
  int64_t total_iters_;
};

}  // namespace farandole
