// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "farandole/export.h"
#include "farandole/optim/lr_scheduler/lr_scheduler.h"

namespace farandole {

/// Base of schedulers whose learning rates are a formula of last_epoch() and the current learning
/// rates or base_lrs(). torch's base class LRScheduler; one's own schedulers derive from it, and
/// call begin() at the end of their constructors.
class FARANDOLE_API FormulaScheduler : public LRScheduler {
 public:
  ~FormulaScheduler() override;

  void step() override;

 protected:
  explicit FormulaScheduler(ScheduledOptimizer optimizer);

  /// Learning rates of the groups at last_epoch(), from those of the step before.
  virtual std::vector<double> get_lr() = 0;
  /// The same from base_lrs() alone, for the first step after a milestone of SequentialLR; in torch
  /// _get_closed_form_lr().
  virtual std::vector<double> get_closed_form_lr() { return get_lr(); }

  void begin() override;
  void undo() override { --last_epoch_; }
  bool can_restart() const override { return true; }
  void restart() override;
  void name_fields(SchedulerFields& fields) override;

  /// Goes to an epoch; the learning rates are get_lr() or get_closed_form_lr(). Changes nothing if
  /// these throw.
  void update(int64_t epoch, bool is_closed_form);
  /// Whether begin() is in progress.
  bool is_initial() const { return is_initial_; }
  int64_t step_count() const { return step_count_; }
  /// The initial learning rates.
  const std::vector<double>& base_lrs() const { return base_lrs_; }
  void set_base_lrs(std::vector<double> lrs) { base_lrs_ = std::move(lrs); }
  /// Current learning rates, or base_lrs(), times a factor.
  std::vector<double> scaled_lrs(double factor) const;
  std::vector<double> scaled_base_lrs(double factor) const;

 private:
  std::vector<double> base_lrs_;
  int64_t step_count_ = 0;
  bool is_initial_ = false;
};

}  // namespace farandole
