// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "farandole/export.h"
#include "farandole/optim/lr_scheduler/formula_scheduler.h"
#include "farandole/optim/lr_scheduler/per_group.h"

namespace farandole {

struct OneCycleOptions {
  double pct_start = 0.3;         ///< part of the steps in which learning rates go up
  bool is_linear = false;         ///< torch's anneal_strategy="linear" in place of "cos"
  bool cycle_momentum = true;     ///< whether momentum goes down while learning rates go up
  PerGroup base_momentum = 0.85;  ///< its least value; beta1 of Adam, AdamW and LAMB
  PerGroup max_momentum = 0.95;   ///< its first and last value
  double div_factor = 25.0;       ///< max_lr / initial learning rate
  double final_div_factor = 1e4;  ///< initial / last learning rate
  bool three_phase = false;       ///< down to the initial learning rate first, then to the last
};

/// One cycle: learning rates go from max_lr / div_factor up to max_lr and down to far less, while
/// momentum goes down and up (Smith and Topin 2017, Super-convergence, arXiv:1708.07120; as fastai
/// writes it). One per optimizer.
class FARANDOLE_API OneCycleLR final : public FormulaScheduler {
 public:
  /// `total_steps` is torch's, or epochs * steps_per_epoch. Throws InvalidArgument unless
  /// total_steps >= 1, 0 <= pct_start <= 1, divisors > 0, lists have one number for each group, the
  /// optimizer has a momentum or beta1 if that cycles, and no phase has 0 steps.
  OneCycleLR(ScheduledOptimizer optimizer, const PerGroup& max_lr, int64_t total_steps,
             const OneCycleOptions& options = {});
  ~OneCycleLR() override;

  /// Throws InvalidArgument, and changes nothing, after total_steps calls.
  void step() override;

 protected:
  std::vector<double> get_lr() override;
  void name_fields(SchedulerFields& fields) override;

 private:
  struct Phase;
  std::vector<Phase> phases() const;
  Phase phase_at(int64_t step) const;
  double anneal(double start, double end, double pct) const;

  int64_t total_steps_;
  double pct_start_;
  bool is_linear_;
  bool cycle_momentum_;
  bool three_phase_;
  std::vector<double> max_lrs_;
  std::vector<double> min_lrs_;
  std::vector<double> max_momenta_;
  std::vector<double> base_momenta_;
};

}  // namespace farandole
