// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lr_scheduler/step_lr.h"

#include <cmath>
#include <string>
#include <utility>

#include "optim/lr_scheduler/argument_check.h"

namespace farandole {

StepLR::StepLR(ScheduledOptimizer of, int64_t step_size, double gamma)
    : FormulaScheduler(std::move(of)), step_size_(step_size), gamma_(gamma) {
  check_argument(step_size >= 1, "StepLR", "step_size " + std::to_string(step_size),
                 "it is a number of steps, at least 1.");
  begin();
}

StepLR::~StepLR() = default;

std::vector<double> StepLR::get_lr() {
  if (last_epoch_ == 0 || last_epoch_ % step_size_ != 0) return optimizer().lrs();
  return scaled_lrs(gamma_);
}

std::vector<double> StepLR::get_closed_form_lr() {
  return scaled_base_lrs(std::pow(gamma_, static_cast<double>(last_epoch_ / step_size_)));
}

void StepLR::name_fields(SchedulerFields& fields) {
  FormulaScheduler::name_fields(fields);
  fields.add("step_size", step_size_, 1);
  fields.add("gamma", gamma_);
}

}  // namespace farandole
