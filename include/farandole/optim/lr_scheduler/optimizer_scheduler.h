// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "farandole/export.h"
#include "farandole/optim/lr_scheduler/scheduled_optimizer.h"
#include "farandole/optim/lr_scheduler/scheduler_fields.h"

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace farandole {

/// What all schedulers have in common: an optimizer whose learning rates they set, and a state.
/// torch.optim.lr_scheduler for C++: names, arguments and every bit of the values are those of
/// torch's Python. LibTorch itself has StepLR and ReduceLROnPlateau, without a state.
///
/// The optimizer is any of LibTorch's or Farandole's and outlives the scheduler. All ranks make the
/// same schedulers and step them together; nothing is sent.
///
/// Errors: InvalidArgument. Threads: one call at a time, not during a step of the optimizer.
class FARANDOLE_API OptimizerScheduler {
 public:
  virtual ~OptimizerScheduler();
  OptimizerScheduler(const OptimizerScheduler&) = delete;
  OptimizerScheduler& operator=(const OptimizerScheduler&) = delete;

  /// Calls of step(), in most schedulers.
  int64_t last_epoch() const { return last_epoch_; }
  /// Learning rates of the groups after the last step.
  const std::vector<double>& get_last_lr() const { return last_lr_; }

  /// All that a scheduler of the same class needs to go on: its arguments and its progress, and as
  /// "lr" (and "momentum", if it cycles) what the optimizer has now. Functions are not in it.
  LRSchedulerState state() const;
  /// Goes on from a state, and sets the learning rates of the optimizer, so that a checkpoint of
  /// the optimizer may be loaded before or after. As in torch, arguments of the state replace those
  /// of the constructor: to change one, change it in the state. Throws InvalidArgument, and changes
  /// nothing, if the state is one of another class or number of groups.
  void load_state(const LRSchedulerState& state);
  /// The same by torch::save() and torch::load().
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 protected:
  explicit OptimizerScheduler(ScheduledOptimizer optimizer);

  /// Names the variables of a derived class too.
  virtual void name_fields(SchedulerFields& fields);

  const ScheduledOptimizer& optimizer() const { return optimizer_; }
  /// For get_last_lr().
  void keep_lrs() { last_lr_ = optimizer_.lrs(); }

  int64_t last_epoch_ = 0;

 private:
  SchedulerFields fields();

  ScheduledOptimizer optimizer_;
  std::vector<double> last_lr_;
};

FARANDOLE_API torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                                          const OptimizerScheduler& scheduler);
FARANDOLE_API torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                                         OptimizerScheduler& scheduler);

}  // namespace farandole
