// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lr_scheduler/multi_step_lr.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "optim/lr_scheduler/argument_check.h"

namespace farandole {

MultiStepLR::MultiStepLR(ScheduledOptimizer of, std::vector<int64_t> milestones, double gamma)
    : FormulaScheduler(std::move(of)), milestones_(std::move(milestones)), gamma_(gamma) {
  int64_t before = 0;
  for (const int64_t milestone : milestones_) {
    check_argument(milestone >= before, "MultiStepLR",
                   "milestone " + std::to_string(milestone) + " after " + std::to_string(before),
                   "milestones are numbers of steps in ascending order.");
    before = milestone;
  }
  begin();
}

MultiStepLR::~MultiStepLR() = default;

std::vector<double> MultiStepLR::get_lr() {
  const auto times = std::count(milestones_.begin(), milestones_.end(), last_epoch_);
  if (times == 0) return optimizer().lrs();
  return scaled_lrs(std::pow(gamma_, static_cast<double>(times)));
}

std::vector<double> MultiStepLR::get_closed_form_lr() {
  const auto next = std::upper_bound(milestones_.begin(), milestones_.end(), last_epoch_);
  return scaled_base_lrs(std::pow(gamma_, static_cast<double>(next - milestones_.begin())));
}

void MultiStepLR::name_fields(SchedulerFields& fields) {
  FormulaScheduler::name_fields(fields);
  fields.add("milestones", milestones_);
  fields.add("gamma", gamma_);
}

}  // namespace farandole
