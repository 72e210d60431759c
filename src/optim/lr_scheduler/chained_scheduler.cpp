// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lr_scheduler/chained_scheduler.h"

#include <utility>

#include "optim/lr_scheduler/argument_check.h"

namespace farandole {

ChainedScheduler::ChainedScheduler(ScheduledOptimizer of,
                                   const std::vector<LRSchedulerFactory>& schedulers)
    : LRScheduler(std::move(of)) {
  check_argument(!schedulers.empty(), "ChainedScheduler", "no scheduler", "it needs at least one.");
  schedulers_ = make_parts(optimizer(), schedulers);
  keep_lrs();
}

ChainedScheduler::~ChainedScheduler() = default;

void ChainedScheduler::undo() {
  for (const auto& scheduler : schedulers_) scheduler->undo();
}

void ChainedScheduler::step() {
  for (const auto& scheduler : schedulers_) scheduler->step();
  ++last_epoch_;
  keep_lrs();
}

void ChainedScheduler::name_fields(SchedulerFields& fields) {
  LRScheduler::name_fields(fields);
  for (size_t i = 0; i < schedulers_.size(); ++i) name_part(fields, i, *schedulers_[i]);
}

}  // namespace farandole
