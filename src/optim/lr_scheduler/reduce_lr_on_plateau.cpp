// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lr_scheduler/reduce_lr_on_plateau.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "optim/lr_scheduler/argument_check.h"

namespace farandole {
namespace {

void check_plateau(const ReduceLROnPlateauOptions& options) {
  const auto check = [](bool holds, const std::string& got, const std::string& rule) {
    check_argument(holds, "ReduceLROnPlateau", got, rule);
  };
  check(options.factor >= 0 && options.factor < 1, "factor " + std::to_string(options.factor),
        "learning rates are multiplied by it to shrink, so it must be below 1.");
  check(options.patience >= 0, "patience " + std::to_string(options.patience),
        "it is a number of steps.");
  check(options.cooldown >= 0, "cooldown " + std::to_string(options.cooldown),
        "it is a number of steps.");
  check(options.threshold >= 0, "threshold " + std::to_string(options.threshold),
        "it must not be negative.");
  check(options.eps >= 0, "eps " + std::to_string(options.eps), "it must not be negative.");
}

}  // namespace

ReduceLROnPlateau::ReduceLROnPlateau(ScheduledOptimizer of, const ReduceLROnPlateauOptions& options)
    : OptimizerScheduler(std::move(of)), options_(options) {
  check_plateau(options);
  options.min_lr.for_groups(optimizer().groups(), "ReduceLROnPlateau", "min_lr");
}

ReduceLROnPlateau::~ReduceLROnPlateau() = default;

bool ReduceLROnPlateau::is_better(double metric) const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double best = best_.value_or(options_.is_max ? -kInfinity : kInfinity);
  const double threshold = options_.threshold;
  if (options_.is_max) {
    return metric > (options_.is_threshold_abs ? best + threshold : best * (threshold + 1.0));
  }
  return metric < (options_.is_threshold_abs ? best - threshold : best * (1.0 - threshold));
}

void ReduceLROnPlateau::step(double metric) {
  ++last_epoch_;
  if (is_better(metric)) {
    best_ = metric;
    num_bad_epochs_ = 0;
  } else {
    ++num_bad_epochs_;
  }
  if (cooldown_counter_ > 0) {
    --cooldown_counter_;
    num_bad_epochs_ = 0;
  }
  if (num_bad_epochs_ > options_.patience) {
    reduce_lr();
    cooldown_counter_ = options_.cooldown;
    num_bad_epochs_ = 0;
  }
  keep_lrs();
}

void ReduceLROnPlateau::reduce_lr() {
  std::vector<double> lrs = optimizer().lrs();
  const std::vector<double> least =
      options_.min_lr.for_groups(lrs.size(), "ReduceLROnPlateau", "min_lr");
  for (size_t i = 0; i < lrs.size(); ++i) {
    const double reduced = std::max(lrs[i] * options_.factor, least[i]);
    if (lrs[i] - reduced > options_.eps) lrs[i] = reduced;
  }
  optimizer().set_lrs(lrs);
}

void ReduceLROnPlateau::name_fields(SchedulerFields& fields) {
  OptimizerScheduler::name_fields(fields);
  fields.add("is_max", options_.is_max);
  fields.add("factor", options_.factor);
  fields.add("patience", options_.patience, 0);
  fields.add("threshold", options_.threshold);
  fields.add("is_threshold_abs", options_.is_threshold_abs);
  fields.add("cooldown", options_.cooldown, 0);
  fields.add("eps", options_.eps);
  fields.add("cooldown_counter", cooldown_counter_);
  fields.add("num_bad_epochs", num_bad_epochs_);
  const auto groups = [this] { return optimizer().groups(); };
  fields.add(
      "min_lrs",
      [this, groups] {
        return options_.min_lr.for_groups(groups(), "ReduceLROnPlateau", "min_lr");
      },
      [groups](const std::vector<double>& least) { return least.size() == groups(); },
      [this](const std::vector<double>& least) { options_.min_lr = PerGroup(least); });
  // An infinity before the first metric, which JSON does not have.
  fields.add(
      "best", [this] { return best_ ? std::vector<double>{*best_} : std::vector<double>(); },
      [](const std::vector<double>& best) { return best.size() <= 1; },
      [this](const std::vector<double>& best) {
        best_ = best.empty() ? std::nullopt : std::optional<double>(best.front());
      });
}

}  // namespace farandole
