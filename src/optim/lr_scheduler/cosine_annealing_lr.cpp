// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lr_scheduler/cosine_annealing_lr.h"

#include <cmath>
#include <string>
#include <utility>

#include "optim/lr_scheduler/argument_check.h"

namespace farandole {

CosineAnnealingLR::CosineAnnealingLR(ScheduledOptimizer of, int64_t T_max, double eta_min)
    : FormulaScheduler(std::move(of)), T_max_(T_max), eta_min_(eta_min) {
  check_argument(T_max >= 1, "CosineAnnealingLR", "T_max " + std::to_string(T_max),
                 "it is a number of steps, at least 1.");
  begin();
}

CosineAnnealingLR::~CosineAnnealingLR() = default;

std::vector<double> CosineAnnealingLR::get_lr() {
  std::vector<double> lrs = optimizer().lrs();
  if (is_initial()) return lrs;
  const auto period = static_cast<double>(T_max_);
  if ((last_epoch_ - 1 - T_max_) % (2 * T_max_) == 0) {  // from eta_min, where the ratio is 0 / 0
    for (size_t i = 0; i < lrs.size(); ++i) {
      lrs[i] = lrs[i] + (base_lrs().at(i) - eta_min_) * (1 - std::cos(M_PI / period)) / 2;
    }
    return lrs;
  }
  const auto height = [period](int64_t epoch) {
    return 1 + std::cos(M_PI * static_cast<double>(epoch) / period);
  };
  const double ratio = height(last_epoch_) / height(last_epoch_ - 1);
  for (double& lr : lrs) lr = ratio * (lr - eta_min_) + eta_min_;
  return lrs;
}

std::vector<double> CosineAnnealingLR::get_closed_form_lr() {
  const double angle = M_PI * static_cast<double>(last_epoch_) / static_cast<double>(T_max_);
  std::vector<double> lrs = base_lrs();
  for (double& lr : lrs) lr = eta_min_ + (lr - eta_min_) * (1 + std::cos(angle)) / 2;
  return lrs;
}

void CosineAnnealingLR::name_fields(SchedulerFields& fields) {
  FormulaScheduler::name_fields(fields);
  fields.add("T_max", T_max_, 1);
  fields.add("eta_min", eta_min_);
}

}  // namespace farandole
