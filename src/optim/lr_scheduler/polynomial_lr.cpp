// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lr_scheduler/polynomial_lr.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "optim/lr_scheduler/argument_check.h"

namespace farandole {

PolynomialLR::PolynomialLR(ScheduledOptimizer of, int64_t total_iters, double power)
    : FormulaScheduler(std::move(of)), total_iters_(total_iters), power_(power) {
  check_argument(total_iters >= 1, "PolynomialLR", "total_iters " + std::to_string(total_iters),
                 "it is a number of steps, at least 1.");
  check_argument(power >= 0, "PolynomialLR", "power " + std::to_string(power),
                 "it must not be negative.");
  begin();
}

PolynomialLR::~PolynomialLR() = default;

std::vector<double> PolynomialLR::get_lr() {
  if (is_initial() || last_epoch_ > total_iters_) return optimizer().lrs();
  const auto left = [this](int64_t epoch) {
    return 1.0 - static_cast<double>(epoch) / static_cast<double>(total_iters_);
  };
  return scaled_lrs(std::pow(left(last_epoch_) / left(last_epoch_ - 1), power_));
}

std::vector<double> PolynomialLR::get_closed_form_lr() {
  const auto steps = static_cast<double>(std::min(total_iters_, last_epoch_));
  return scaled_base_lrs(std::pow(1.0 - steps / static_cast<double>(total_iters_), power_));
}

void PolynomialLR::name_fields(SchedulerFields& fields) {
  FormulaScheduler::name_fields(fields);
  fields.add("total_iters", total_iters_, 1);
  fields.add("power", power_);
}

}  // namespace farandole
