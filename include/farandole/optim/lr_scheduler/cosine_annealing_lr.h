// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "farandole/export.h"
#include "farandole/optim/lr_scheduler/formula_scheduler.h"

namespace farandole {

/// Half a cosine from the initial learning rates to eta_min in T_max steps, then back, and so on
/// (Loshchilov and Hutter 2017, SGDR, arXiv:1608.03983, without its restarts):
///
///   eta_min + (base_lr - eta_min) * (1 + cos(pi * last_epoch / T_max)) / 2
///
/// As in torch, each step computes it from the learning rate before.
class FARANDOLE_API CosineAnnealingLR final : public FormulaScheduler {
 public:
  /// Throws InvalidArgument unless T_max >= 1.
  CosineAnnealingLR(ScheduledOptimizer optimizer, int64_t T_max, double eta_min = 0.0);
  ~CosineAnnealingLR() override;

 protected:
  std::vector<double> get_lr() override;
  std::vector<double> get_closed_form_lr() override;
  void name_fields(SchedulerFields& fields) override;

 private:
  int64_t T_max_;
  double eta_min_;
};

}  // namespace farandole
