// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lr_scheduler/one_cycle_lr.h"

#include <cmath>
#include <string>
#include <utility>

#include "optim/lr_scheduler/argument_check.h"

namespace farandole {
namespace {

void check_one_cycle(int64_t total_steps, const OneCycleOptions& options) {
  const auto check = [](bool holds, const std::string& got, const std::string& rule) {
    check_argument(holds, "OneCycleLR", got, rule);
  };
  check(total_steps >= 1, "total_steps " + std::to_string(total_steps),
        "it is the number of all steps, at least 1.");
  check(options.pct_start >= 0 && options.pct_start <= 1,
        "pct_start " + std::to_string(options.pct_start), "it must be between 0 and 1.");
  check(options.div_factor > 0, "div_factor " + std::to_string(options.div_factor),
        "max_lr is divided by it, so it must be above 0.");
  check(options.final_div_factor > 0,
        "final_div_factor " + std::to_string(options.final_div_factor),
        "the initial learning rate is divided by it, so it must be above 0.");
}

std::vector<double> quotients(std::vector<double> numbers, double divisor) {
  for (double& number : numbers) number = number / divisor;
  return numbers;
}

}  // namespace

/// From the end of the phase before to `end`; counted in steps, with fractions, as torch has it.
struct OneCycleLR::Phase {
  double end;
  const std::vector<double>* start_lrs;
  const std::vector<double>* end_lrs;
  const std::vector<double>* start_momenta;
  const std::vector<double>* end_momenta;
  double start = 0;
};

OneCycleLR::OneCycleLR(ScheduledOptimizer of, const PerGroup& max_lr, int64_t total_steps,
                       const OneCycleOptions& options)
    : FormulaScheduler(std::move(of)),
      total_steps_(total_steps),
      pct_start_(options.pct_start),
      is_linear_(options.is_linear),
      cycle_momentum_(options.cycle_momentum),
      three_phase_(options.three_phase) {
  check_one_cycle(total_steps, options);
  const size_t groups = optimizer().groups();
  max_lrs_ = max_lr.for_groups(groups, "OneCycleLR", "max_lr");
  set_base_lrs(quotients(max_lrs_, options.div_factor));
  min_lrs_ = quotients(base_lrs(), options.final_div_factor);
  max_momenta_ = options.max_momentum.for_groups(groups, "OneCycleLR", "max_momentum");
  base_momenta_ = options.base_momentum.for_groups(groups, "OneCycleLR", "base_momentum");
  if (cycle_momentum_ && !optimizer().has_momenta()) {
    throw InvalidArgument("scheduler-momentum",
                          "a OneCycleLR got an optimizer without momentum and beta1.",
                          "with cycle_momentum it changes them in every step.",
                          "set cycle_momentum to false, or use SGD, RMSprop, LARS, Adam, AdamW or "
                          "LAMB.");
  }
  phase_at(0);  // may throw
  optimizer().initial_lrs() = base_lrs();
  begin();
}

OneCycleLR::~OneCycleLR() = default;

void OneCycleLR::step() {
  if (last_epoch_ + 1 > total_steps_) {
    throw InvalidArgument("scheduler-ended",
                          "a OneCycleLR was stepped " + std::to_string(last_epoch_ + 1) +
                              " times, and has " + std::to_string(total_steps_) + " steps.",
                          "the cycle is over, and no learning rate is defined after it.",
                          "make it with total_steps = epochs * steps per epoch of the whole "
                          "training, and step it once for each step of the optimizer.");
  }
  FormulaScheduler::step();
}

std::vector<OneCycleLR::Phase> OneCycleLR::phases() const {
  const double rise = pct_start_ * static_cast<double>(total_steps_);
  const auto last = static_cast<double>(total_steps_ - 1);
  std::vector<Phase> phases;
  phases.push_back({rise - 1, &base_lrs(), &max_lrs_, &max_momenta_, &base_momenta_});
  if (three_phase_) {
    const double fall = 2 * pct_start_ * static_cast<double>(total_steps_);
    phases.push_back({fall - 2, &max_lrs_, &base_lrs(), &base_momenta_, &max_momenta_});
    phases.push_back({last, &base_lrs(), &min_lrs_, &max_momenta_, &max_momenta_});
  } else {
    phases.push_back({last, &max_lrs_, &min_lrs_, &base_momenta_, &max_momenta_});
  }
  return phases;
}

OneCycleLR::Phase OneCycleLR::phase_at(int64_t step) const {
  Phase found{};
  double start = 0;
  for (const Phase& phase : phases()) {
    found = phase;
    found.start = start;
    if (static_cast<double>(step) <= phase.end) break;
    start = phase.end;
  }
  check_argument(found.start != found.end, "OneCycleLR",
                 "pct_start " + std::to_string(pct_start_) + " of " + std::to_string(total_steps_) +
                     " total_steps",
                 "it gives a phase without steps, in which torch divides by 0.");
  return found;
}

double OneCycleLR::anneal(double start, double end, double pct) const {
  if (is_linear_) return (end - start) * pct + start;
  return end + (start - end) / 2.0 * (std::cos(M_PI * pct) + 1);
}

std::vector<double> OneCycleLR::get_lr() {
  const Phase phase = phase_at(last_epoch_);
  const double pct = (static_cast<double>(last_epoch_) - phase.start) / (phase.end - phase.start);
  const auto annealed = [&](const std::vector<double>& starts, const std::vector<double>& ends) {
    std::vector<double> values;
    for (size_t i = 0; i < starts.size(); ++i) values.push_back(anneal(starts[i], ends[i], pct));
    return values;
  };
  std::vector<double> lrs = annealed(*phase.start_lrs, *phase.end_lrs);
  if (cycle_momentum_ && lrs.size() == optimizer().groups()) {
    optimizer().set_momenta(annealed(*phase.start_momenta, *phase.end_momenta));
  }
  return lrs;
}

void OneCycleLR::name_fields(SchedulerFields& fields) {
  FormulaScheduler::name_fields(fields);
  fields.add("total_steps", total_steps_, 1);
  fields.add("pct_start", pct_start_);
  fields.add("is_linear", is_linear_);
  fields.add("cycle_momentum", cycle_momentum_);
  fields.add("three_phase", three_phase_);
  fields.add("max_lrs", max_lrs_);
  fields.add("min_lrs", min_lrs_);
  fields.add("max_momentums", max_momenta_);
  fields.add("base_momentums", base_momenta_);
  const auto has_one_for_each = [this](const std::vector<double>& momenta) {
    return momenta.size() == (cycle_momentum_ ? optimizer().groups() : 0);
  };
  fields.add(
      "momentum",
      [this] { return cycle_momentum_ ? optimizer().momenta() : std::vector<double>(); },
      has_one_for_each,
      [this](const std::vector<double>& momenta) { optimizer().set_momenta(momenta); });
}

}  // namespace farandole
