// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lr_scheduler/sequential_lr.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "farandole/error.h"
#include "optim/lr_scheduler/argument_check.h"

namespace farandole {
namespace {

void check_milestones(const std::vector<int64_t>& milestones, size_t schedulers) {
  check_argument(schedulers >= 1, "SequentialLR", "no scheduler", "it needs at least one.");
  check_argument(milestones.size() + 1 == schedulers, "SequentialLR",
                 std::to_string(milestones.size()) + " milestones for " +
                     std::to_string(schedulers) + " schedulers",
                 "there must be one milestone between each two schedulers.");
  int64_t before = 0;
  for (const int64_t milestone : milestones) {
    check_argument(milestone > before, "SequentialLR",
                   "milestone " + std::to_string(milestone) + " after " + std::to_string(before),
                   "milestones are numbers of steps, each larger than the one before.");
    before = milestone;
  }
}

}  // namespace

LRSchedulerFactory SequentialLR::restartable(const LRSchedulerFactory& make) {
  return [make](const ScheduledOptimizer& of) {
    std::unique_ptr<LRScheduler> made = make(of);
    check_argument(made->can_restart(), "SequentialLR",
                   "a SequentialLR or ChainedScheduler after its first scheduler",
                   "these have no learning rate of their own to begin with at a milestone.");
    return made;
  };
}

SequentialLR::SequentialLR(ScheduledOptimizer of, const std::vector<LRSchedulerFactory>& schedulers,
                           std::vector<int64_t> milestones)
    : LRScheduler(std::move(of)), milestones_(std::move(milestones)) {
  check_milestones(milestones_, schedulers.size());
  std::vector<LRSchedulerFactory> checked = {schedulers.front()};
  for (size_t i = 1; i < schedulers.size(); ++i) checked.push_back(restartable(schedulers[i]));
  schedulers_ = make_parts(optimizer(), checked);
  optimizer().set_lrs(optimizer().initial_lrs());
  undo();
  schedulers_.front()->begin();
  keep_lrs();
}

SequentialLR::~SequentialLR() = default;

void SequentialLR::undo() {
  for (const auto& scheduler : schedulers_) scheduler->undo();
}

void SequentialLR::step() {
  const int64_t epoch = last_epoch_ + 1;
  const auto next = std::upper_bound(milestones_.begin(), milestones_.end(), epoch);
  const auto index = static_cast<size_t>(next - milestones_.begin());
  LRScheduler& scheduler = *schedulers_[index];
  if (index > 0 && milestones_[index - 1] == epoch) {
    scheduler.restart();
  } else {
    scheduler.step();
  }
  last_epoch_ = epoch;
  keep_lrs();
}

void SequentialLR::name_fields(SchedulerFields& fields) {
  LRScheduler::name_fields(fields);
  fields.add(
      "_milestones", [this] { return std::vector<double>(milestones_.begin(), milestones_.end()); },
      [this](const std::vector<double>& milestones) {
        double before = 0;
        for (const double milestone : milestones) {
          if (!(milestone > before) || std::trunc(milestone) != milestone) return false;
          before = milestone;
        }
        return milestones.size() == milestones_.size() && before < 1e15;
      },
      [this](const std::vector<double>& milestones) {
        milestones_.clear();
        for (const double each : milestones) milestones_.push_back(static_cast<int64_t>(each));
      });
  for (size_t i = 0; i < schedulers_.size(); ++i) name_part(fields, i, *schedulers_[i]);
}

}  // namespace farandole
