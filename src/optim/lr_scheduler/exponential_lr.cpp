// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lr_scheduler/exponential_lr.h"

#include <cmath>
#include <utility>

namespace farandole {

ExponentialLR::ExponentialLR(ScheduledOptimizer of, double gamma)
    : FormulaScheduler(std::move(of)), gamma_(gamma) {
  begin();
}

ExponentialLR::~ExponentialLR() = default;

std::vector<double> ExponentialLR::get_lr() {
  return is_initial() ? optimizer().lrs() : scaled_lrs(gamma_);
}

std::vector<double> ExponentialLR::get_closed_form_lr() {
  return scaled_base_lrs(std::pow(gamma_, static_cast<double>(last_epoch_)));
}

void ExponentialLR::name_fields(SchedulerFields& fields) {
  FormulaScheduler::name_fields(fields);
  fields.add("gamma", gamma_);
}

}  // namespace farandole
