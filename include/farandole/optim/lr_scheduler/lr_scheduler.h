// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "farandole/export.h"
#include "farandole/optim/lr_scheduler/optimizer_scheduler.h"

namespace farandole {

class LRScheduler;

/// Makes a scheduler as a part of another one.
using LRSchedulerFactory =
    std::function<std::unique_ptr<LRScheduler>(const ScheduledOptimizer& optimizer)>;

/// A scheduler that steps without a metric. A new one has set the learning rates of the first step;
/// call step() after each step of the optimizer (or after each epoch).
class FARANDOLE_API LRScheduler : public OptimizerScheduler {
 public:
  ~LRScheduler() override;

  /// Sets the learning rates of the next step of the optimizer.
  virtual void step() = 0;

 protected:
  using OptimizerScheduler::OptimizerScheduler;

  // What a SequentialLR calls on its parts; the names that torch gives them are in brackets.
  friend class SequentialLR;
  friend class ChainedScheduler;
  virtual void begin() = 0;              ///< sets the first learning rates (_initial_step)
  virtual void undo() = 0;               ///< goes back to before begin() (recursive_undo)
  virtual bool can_restart() const = 0;  ///< whether there is a restart()
  virtual void restart() = 0;            ///< as at epoch 0, at a milestone (_update_lr(0))
  /// The names of a part in the state of the whole.
  static void name_part(SchedulerFields& fields, size_t index, LRScheduler& part);
  /// Makes parts, which set learning rates. If one throws, the optimizer is as before.
  static std::vector<std::unique_ptr<LRScheduler>> make_parts(
      const ScheduledOptimizer& optimizer, const std::vector<LRSchedulerFactory>& factories);
};

/// The factory of a scheduler with these arguments, those of its constructor after the optimizer:
/// schedule_of<LinearLR>(0.01, 1.0, 500).
template <class Scheduler, class... Arguments>
LRSchedulerFactory schedule_of(Arguments... arguments) {
  return [all = std::make_tuple(std::move(arguments)...)](
             const ScheduledOptimizer& optimizer) -> std::unique_ptr<LRScheduler> {
    return std::apply(
        [&optimizer](const auto&... each) {
          return std::make_unique<Scheduler>(optimizer, each...);
        },
        all);
  };
}

}  // namespace farandole
