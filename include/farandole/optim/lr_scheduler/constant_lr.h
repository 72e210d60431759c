// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "farandole/export.h"
#include "farandole/optim/lr_scheduler/formula_scheduler.h"

namespace farandole {

/// The initial learning rates times a factor in the first total_iters steps.
class FARANDOLE_API ConstantLR final : public FormulaScheduler {
 public:
  /// Throws InvalidArgument unless 0 < factor <= 1 and total_iters >= 0.
  explicit ConstantLR(ScheduledOptimizer optimizer, double factor = 1.0 / 3,
                      int64_t total_iters = 5);
  ~ConstantLR() override;

 protected:
  std::vector<double> get_lr() override;
  std::vector<double> get_closed_form_lr() override;
  void name_fields(SchedulerFields& fields) override;

 private:
  double factor_;
  int64_t total_iters_;
};

}  // namespace farandole
