// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lr_scheduler/cosine_annealing_warm_restarts.h"

#include <cmath>
#include <string>
#include <utility>

#include "optim/lr_scheduler/argument_check.h"

namespace farandole {

CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(ScheduledOptimizer of, int64_t T_0,
                                                         int64_t T_mult, double eta_min)
    : FormulaScheduler(std::move(of)),
      T_0_(T_0),
      T_mult_(T_mult),
      eta_min_(eta_min),
      T_i_(static_cast<double>(T_0)) {
  check_argument(T_0 >= 1, "CosineAnnealingWarmRestarts", "T_0 " + std::to_string(T_0),
                 "it is a number of steps, at least 1.");
  check_argument(T_mult >= 1, "CosineAnnealingWarmRestarts", "T_mult " + std::to_string(T_mult),
                 "it is a factor of at least 1.");
  begin();
}

CosineAnnealingWarmRestarts::~CosineAnnealingWarmRestarts() = default;

void CosineAnnealingWarmRestarts::step() {
  if (last_epoch_ < 0) {
    step(0.0);
    return;
  }
  T_cur_ += 1;
  if (T_cur_ >= T_i_) {
    T_cur_ = std::fmod(T_cur_, T_i_);
    T_i_ = T_i_ * static_cast<double>(T_mult_);
  }
  update(last_epoch_ + 1, false);
}

void CosineAnnealingWarmRestarts::step(double epoch) {
  check_argument(epoch >= 0, "CosineAnnealingWarmRestarts", "epoch " + std::to_string(epoch),
                 "it must not be negative.");
  const auto first = static_cast<double>(T_0_);
  const auto growth = static_cast<double>(T_mult_);
  if (epoch < first) {
    T_i_ = first;
    T_cur_ = epoch;
  } else if (T_mult_ == 1) {
    T_cur_ = std::fmod(epoch, first);
  } else {
    const double restarts =
        std::trunc(std::log(epoch / first * (growth - 1) + 1) / std::log(growth));
    T_cur_ = epoch - first * (std::pow(growth, restarts) - 1) / (growth - 1);
    T_i_ = first * std::pow(growth, restarts);
  }
  update(static_cast<int64_t>(std::floor(epoch)), false);
}

std::vector<double> CosineAnnealingWarmRestarts::get_lr() {
  std::vector<double> lrs = base_lrs();
  for (double& lr : lrs) {
    lr = eta_min_ + (lr - eta_min_) * (1 + std::cos(M_PI * T_cur_ / T_i_)) / 2;
  }
  return lrs;
}

void CosineAnnealingWarmRestarts::name_fields(SchedulerFields& fields) {
  FormulaScheduler::name_fields(fields);
  fields.add("T_0", T_0_, 1);
  fields.add("T_mult", T_mult_, 1);
  fields.add("eta_min", eta_min_);
  fields.add("T_cur", T_cur_);
  fields.add("T_i", T_i_);
}

}  // namespace farandole
