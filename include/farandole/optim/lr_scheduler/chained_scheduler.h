// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "farandole/export.h"
#include "farandole/optim/lr_scheduler/lr_scheduler.h"

namespace farandole {

/// Schedulers that all step at once, in order; each changes the learning rates that the one before
/// has set. It makes its parts, as SequentialLR does. If a part throws, those before it have
/// stepped.
class FARANDOLE_API ChainedScheduler final : public LRScheduler {
 public:
  /// Throws InvalidArgument if there are none.
  ChainedScheduler(ScheduledOptimizer optimizer, const std::vector<LRSchedulerFactory>& schedulers);
  ~ChainedScheduler() override;

  void step() override;

 protected:
  void begin() override { step(); }
  void undo() override;
  bool can_restart() const override { return false; }
  void restart() override {}
  void name_fields(SchedulerFields& fields) override;

 private:
  std::vector<std::unique_ptr<LRScheduler>> schedulers_;
};

}  // namespace farandole
