// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "farandole/export.h"
#include "farandole/optim/lr_scheduler/formula_scheduler.h"

namespace farandole {

/// Multiplies learning rates by gamma at each milestone; twice at one that is there twice.
class FARANDOLE_API MultiStepLR final : public FormulaScheduler {
 public:
  /// Throws InvalidArgument if a milestone is negative or less than the one before it.
  MultiStepLR(ScheduledOptimizer optimizer, std::vector<int64_t> milestones, double gamma = 0.1);
  ~MultiStepLR() override;

 protected:
  std::vector<double> get_lr() override;
  std::vector<double> get_closed_form_lr() override;
  void name_fields(SchedulerFields& fields) override;

 private:
  std::vector<int64_t> milestones_;
  double gamma_;
};

}  // namespace farandole
