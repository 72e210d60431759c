// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lr_scheduler/constant_lr.h"

#include <string>
#include <utility>

#include "optim/lr_scheduler/argument_check.h"

namespace farandole {

ConstantLR::ConstantLR(ScheduledOptimizer of, double factor, int64_t total_iters)
    : FormulaScheduler(std::move(of)), factor_(factor), total_iters_(total_iters) {
  check_argument(factor > 0 && factor <= 1, "ConstantLR", "factor " + std::to_string(factor),
                 "it must be above 0 and at most 1.");
  check_argument(total_iters >= 0, "ConstantLR", "total_iters " + std::to_string(total_iters),
                 "it is a number of steps.");
  begin();
}

ConstantLR::~ConstantLR() = default;

std::vector<double> ConstantLR::get_lr() {
  if (last_epoch_ == 0) return scaled_lrs(factor_);
  if (last_epoch_ != total_iters_) return optimizer().lrs();
  return scaled_lrs(1.0 / factor_);
}

std::vector<double> ConstantLR::get_closed_form_lr() {
  const double is_over = last_epoch_ >= total_iters_ ? 1 : 0;
  return scaled_base_lrs(factor_ + is_over * (1 - factor_));
}

void ConstantLR::name_fields(SchedulerFields& fields) {
  FormulaScheduler::name_fields(fields);
  fields.add("factor", factor_);
  fields.add("total_iters", total_iters_, 0);
}

}  // namespace farandole
