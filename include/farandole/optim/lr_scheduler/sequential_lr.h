// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "farandole/export.h"
#include "farandole/optim/lr_scheduler/lr_scheduler.h"

namespace farandole {

/// Schedulers one after the other: the next one begins at each milestone, a number of steps.
///
///   farandole::SequentialLR scheduler(optimizer,
///                                     {farandole::schedule_of<farandole::LinearLR>(0.01, 1.0,
///                                     500),
///                                      farandole::schedule_of<farandole::CosineAnnealingLR>(9500)},
///                                     {500});
///
/// Unlike in torch, it makes its parts: all of them begin from the learning rates that the
/// optimizer has before, which options of LibTorch have no place for.
class FARANDOLE_API SequentialLR final : public LRScheduler {
 public:
  /// Throws InvalidArgument unless there is one milestone less than parts, milestones begin above 0
  /// and grow, and no part but the first is a SequentialLR or ChainedScheduler (for which torch has
  /// no first value at a milestone).
  SequentialLR(ScheduledOptimizer optimizer, const std::vector<LRSchedulerFactory>& schedulers,
               std::vector<int64_t> milestones);
  ~SequentialLR() override;

  void step() override;

 protected:
  void begin() override { step(); }
  void undo() override;
  bool can_restart() const override { return false; }
  void restart() override {}
  void name_fields(SchedulerFields& fields) override;

 private:
  /// Throws for a scheduler without restart().
  static LRSchedulerFactory restartable(const LRSchedulerFactory& make);

  std::vector<std::unique_ptr<LRScheduler>> schedulers_;
  std::vector<int64_t> milestones_;
};

}  // namespace farandole
