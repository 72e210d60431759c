// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lr_scheduler/formula_scheduler.h"

#include <utility>

namespace farandole {
namespace {

std::vector<double> products(std::vector<double> numbers, double factor) {
  for (double& number : numbers) number *= factor;
  return numbers;
}

}  // namespace

FormulaScheduler::FormulaScheduler(ScheduledOptimizer of)
    : LRScheduler(std::move(of)), base_lrs_(optimizer().initial_lrs()) {
  last_epoch_ = -1;
}

FormulaScheduler::~FormulaScheduler() = default;

void FormulaScheduler::begin() {
  step_count_ = 0;
  is_initial_ = true;
  try {
    step();
  } catch (...) {
    is_initial_ = false;
    throw;
  }
  is_initial_ = false;
}

void FormulaScheduler::step() {
  ++step_count_;
  try {
    update(last_epoch_ + 1, false);
  } catch (...) {
    --step_count_;
    throw;
  }
}

void FormulaScheduler::restart() { update(0, true); }

void FormulaScheduler::update(int64_t epoch, bool is_closed_form) {
  const int64_t before = std::exchange(last_epoch_, epoch);
  try {
    optimizer().set_lrs(is_closed_form ? get_closed_form_lr() : get_lr());
  } catch (...) {
    last_epoch_ = before;
    throw;
  }
  keep_lrs();
}

std::vector<double> FormulaScheduler::scaled_lrs(double factor) const {
  return products(optimizer().lrs(), factor);
}

std::vector<double> FormulaScheduler::scaled_base_lrs(double factor) const {
  return products(base_lrs_, factor);
}

void FormulaScheduler::name_fields(SchedulerFields& fields) {
  LRScheduler::name_fields(fields);
  fields.add("_step_count", step_count_);
  fields.add("base_lrs", base_lrs_);
}

}  // namespace farandole
