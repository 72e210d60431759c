// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "farandole/export.h"
#include "farandole/optim/lr_scheduler/formula_scheduler.h"

namespace farandole {

/// Multiplies learning rates by gamma every step_size steps.
class FARANDOLE_API StepLR final : public FormulaScheduler {
 public:
  /// Throws InvalidArgument unless step_size >= 1.
  StepLR(ScheduledOptimizer optimizer, int64_t step_size, double gamma = 0.1);
  ~StepLR() override;

 protected:
  std::vector<double> get_lr() override;
  std::vector<double> get_closed_form_lr() override;
  void name_fields(SchedulerFields& fields) override;

 private:
  int64_t step_size_;
  double gamma_;
};

}  // namespace farandole
