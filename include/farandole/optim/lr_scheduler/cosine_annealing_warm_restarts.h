// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "farandole/export.h"
#include "farandole/optim/lr_scheduler/formula_scheduler.h"

namespace farandole {

/// SGDR (Loshchilov and Hutter 2017, arXiv:1608.03983, equation 5): half a cosine from the initial
/// learning rates to eta_min, again and again, the first one in T_0 steps and each in T_mult times
/// as many as the one before.
class FARANDOLE_API CosineAnnealingWarmRestarts final : public FormulaScheduler {
 public:
  /// Throws InvalidArgument unless T_0 >= 1 and T_mult >= 1.
  CosineAnnealingWarmRestarts(ScheduledOptimizer optimizer, int64_t T_0, int64_t T_mult = 1,
                              double eta_min = 0.0);
  ~CosineAnnealingWarmRestarts() override;

  void step() override;
  /// Goes to an epoch, which may have a fraction: epoch + batch / batches after each batch. Throws
  /// InvalidArgument if it is negative.
  void step(double epoch);

 protected:
  std::vector<double> get_lr() override;
  void name_fields(SchedulerFields& fields) override;

 private:
  int64_t T_0_;
  int64_t T_mult_;
  double eta_min_;
  double T_cur_ = -1;  ///< since the last restart
  double T_i_;         ///< between restarts
};

}  // namespace farandole
