// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lr_scheduler/lr_scheduler.h"

#include <string>

namespace farandole {

LRScheduler::~LRScheduler() = default;

void LRScheduler::name_part(SchedulerFields& fields, size_t index, LRScheduler& part) {
  SchedulerFields own;
  part.name_fields(own);
  fields.add_part("_schedulers." + std::to_string(index) + ".", own);
}

std::vector<std::unique_ptr<LRScheduler>> LRScheduler::make_parts(
    const ScheduledOptimizer& optimizer, const std::vector<LRSchedulerFactory>& factories) {
  const std::vector<double> lrs = optimizer.lrs();
  const std::vector<double> momenta = optimizer.momenta();
  std::vector<std::unique_ptr<LRScheduler>> parts;
  try {
    for (const LRSchedulerFactory& make : factories) parts.push_back(make(optimizer));
  } catch (...) {
    optimizer.set_lrs(lrs);
    optimizer.set_momenta(momenta);
    throw;
  }
  return parts;
}

}  // namespace farandole
