// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "farandole/export.h"
#include "farandole/optim/lr_scheduler/formula_scheduler.h"

namespace farandole {

/// Decay to 0 in total_iters steps: the initial learning rates times
/// (1 - last_epoch / total_iters) ^ power.
class FARANDOLE_API PolynomialLR final : public FormulaScheduler {
 public:
  /// Throws InvalidArgument unless total_iters >= 1 and power >= 0.
  explicit PolynomialLR(ScheduledOptimizer optimizer, int64_t total_iters = 5, double power = 1.0);
  ~PolynomialLR() override;

 protected:
  std::vector<double> get_lr() override;
  std::vector<double> get_closed_form_lr() override;
  void name_fields(SchedulerFields& fields) override;

 private:
  int64_t total_iters_;
  double power_;
};

}  // namespace farandole
