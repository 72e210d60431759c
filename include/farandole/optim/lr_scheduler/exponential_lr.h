// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "farandole/export.h"
#include "farandole/optim/lr_scheduler/formula_scheduler.h"

namespace farandole {

/// Multiplies learning rates by gamma in every step.
class FARANDOLE_API ExponentialLR final : public FormulaScheduler {
 public:
  ExponentialLR(ScheduledOptimizer optimizer, double gamma);
  ~ExponentialLR() override;

 protected:
  std::vector<double> get_lr() override;
  std::vector<double> get_closed_form_lr() override;
  void name_fields(SchedulerFields& fields) override;

 private:
  double gamma_;
};

}  // namespace farandole
