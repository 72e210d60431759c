// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lr_scheduler/linear_lr.h"

#include <algorithm>
#include <string>
#include <utility>

#include "optim/lr_scheduler/argument_check.h"

namespace farandole {

LinearLR::LinearLR(ScheduledOptimizer of, double start_factor, double end_factor,
                   int64_t total_iters)
    : FormulaScheduler(std::move(of)),
      start_factor_(start_factor),
      end_factor_(end_factor),
      total_iters_(total_iters) {
  check_argument(start_factor > 0 && start_factor <= 1, "LinearLR",
                 "start_factor " + std::to_string(start_factor),
                 "it must be above 0 and at most 1.");
  check_argument(end_factor >= 0 && end_factor <= 1, "LinearLR",
                 "end_factor " + std::to_string(end_factor), "it must be between 0 and 1.");
  check_argument(total_iters >= 1, "LinearLR", "total_iters " + std::to_string(total_iters),
                 "it is a number of steps, at least 1.");
  begin();
}

LinearLR::~LinearLR() = default;

std::vector<double> LinearLR::get_lr() {
  if (last_epoch_ == 0) return scaled_lrs(start_factor_);
  if (is_initial() || last_epoch_ > total_iters_) return optimizer().lrs();
  const double change = end_factor_ - start_factor_;
  return scaled_lrs(1.0 + change / (static_cast<double>(total_iters_) * start_factor_ +
                                    static_cast<double>(last_epoch_ - 1) * change));
}

std::vector<double> LinearLR::get_closed_form_lr() {
  const auto steps = static_cast<double>(std::min(total_iters_, last_epoch_));
  return scaled_base_lrs(start_factor_ +
                         (end_factor_ - start_factor_) * steps / static_cast<double>(total_iters_));
}

void LinearLR::name_fields(SchedulerFields& fields) {
  FormulaScheduler::name_fields(fields);
  fields.add("start_factor", start_factor_);
  fields.add("end_factor", end_factor_);
  fields.add("total_iters", total_iters_, 1);
}

}  // namespace farandole
