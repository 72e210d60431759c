// SPDX-License-Identifier: Apache-2.0
#include "optim/step/step_round.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "ddp/rank_text.h"
#include "farandole/error.h"
#include "optim/shards/check_parameters.h"

namespace farandole {
namespace {

constexpr uint32_t kWell = 0;
constexpr uint32_t kFailed = 1;
constexpr uint32_t kLeavesOut = 2;

}  // namespace

StepRound::StepRound(std::shared_ptr<ReplicaGroup> group, std::vector<std::string> names,
                     uint64_t step)
    : group_(std::move(group)),
      names_(std::move(names)),
      reports_(*group_, (names_.size() + 7) / 8, (names_.size() + 7) / 8),
      step_(step) {}

bool StepRound::enter(const StepReport& report) {
  inside_ = false;
  ++step_;
  const uint32_t outcome = report.leaves_out ? kLeavesOut : kWell;
  const Head head{outcome, 0, step_, comm::fingerprint_of(report.description), report.parameters};
  exchange(head, report.has_gradient);
  check_failures();
  check_steps();
  check_descriptions(report.description);
  check_gradients();
  check_parameters();
  inside_ = !reports_.any([](const Head& each) { return each.outcome == kLeavesOut; });
  return inside_;
}

void StepRound::leave() {
  inside_ = false;
  exchange({kWell, 0, step_, {}, {}}, {});
  check_failures();
}

void StepRound::fail(const std::string& error, bool others_may_store) noexcept {
  try {
    const bool was_inside = std::exchange(inside_, false);
    if (!was_inside) ++step_;
    const Head head{kFailed, was_inside && others_may_store ? 1U : 0U, step_, {}, {}};
    try {
      exchange(head, {});
    } catch (const MismatchError&) {
      // The other ranks were in another collective, for example in the backward of a closure. The
      // error has ended it, and they come here too.
      exchange(head, {});
    }
    group_->all_gather(error);
  } catch (const std::exception&) {  // the group is over, which the other ranks know
  }
}

void StepRound::exchange(const Head& head, const std::vector<bool>& bits) {
  std::byte* const tail = reports_.write(head);
  for (size_t i = 0; i < bits.size(); ++i) {
    if (bits[i]) tail[i / 8] |= std::byte{1} << (i % 8);
  }
  reports_.exchange();
}

bool StepRound::has_gradient(int rank, size_t parameter) const {
  const std::byte bits = reports_.tail(rank)[parameter / 8];
  return (bits >> (parameter % 8) & std::byte{1}) != std::byte{0};
}

std::string StepRound::subject() const {
  return "optimizer step #" + std::to_string(step_) + " in group '" + group_->name() +
         "' on rank " + std::to_string(group_->rank()) + " of " +
         std::to_string(group_->world_size());
}

void StepRound::check_failures() {
  std::vector<int> failed;
  for (int rank = 0; rank < group_->world_size(); ++rank) {
    if (reports_.head(rank).outcome == kFailed) failed.push_back(rank);
  }
  if (failed.empty()) return;
  const bool has_changed = reports_.head(failed.front()).others_may_store != 0;
  const std::vector<std::string> errors = group_->all_gather(std::string());
  throw StepError(
      "step-failed", subject() + " failed on " + text_of_ranks(failed, group_->world_size()) + ".",
      "rank " + std::to_string(failed.front()) +
          " met: " + errors[static_cast<size_t>(failed.front())],
      std::string("fix the cause on that rank. ") +
          (has_changed
               ? "Parameters are the same on all ranks, but the shards of that rank may not "
                 "have been stepped; continue, or load a checkpoint."
               : "Nothing was changed, so the step can be repeated."),
      {failed, "step"});
}

/// A rank that left out a step (because of a GradScaler of its own) is one step behind the others.
/// All ranks continue with the highest number.
void StepRound::check_steps() {
  const uint64_t first = reports_.head(0).step;
  const std::string which = subject();
  for (int rank = 0; rank < group_->world_size(); ++rank) {
    step_ = std::max(step_, reports_.head(rank).step);
  }
  for (int rank = 1; rank < group_->world_size(); ++rank) {
    const uint64_t step = reports_.head(rank).step;
    if (step == first) continue;
    throw StepError("step-count",
                    which + ": rank 0 takes step #" + std::to_string(first) + ", rank " +
                        std::to_string(rank) + " step #" + std::to_string(step) + ".",
                    "one of them skipped a step that the other took.",
                    "make the same decision on all ranks whether to call step(), for example with "
                    "an all_reduce.",
                    {{rank}, "step"});
  }
}

void StepRound::check_descriptions(const std::string& own) const {
  const comm::Fingerprint first = reports_.head(0).description;
  const int other = reports_.find([&](const Head& each) { return each.description != first; });
  if (other == group_->world_size()) return;
  const std::vector<std::string> all = group_->all_gather(own);
  throw StepError(
      "different-hyperparameters",
      subject() + ": ranks 0 and " + std::to_string(other) + " have different hyperparameters.",
      "rank 0 steps with " + all[0] + ", rank " + std::to_string(other) + " with " +
          all[static_cast<size_t>(other)] +
          "; each rank updates its own shards, so shards would be stepped differently.",
      "set param_groups and step schedulers the same way on every rank.", {{other}, "step"});
}

void StepRound::check_gradients() const {
  int differing = 1;
  while (differing < group_->world_size() &&
         std::memcmp(reports_.tail(differing), reports_.tail(0), reports_.tail_bytes()) == 0) {
    ++differing;
  }
  if (differing >= group_->world_size()) return;
  for (size_t i = 0; i < names_.size(); ++i) {
    std::vector<int> with;
    std::vector<int> without;
    for (int rank = 0; rank < group_->world_size(); ++rank) {
      (has_gradient(rank, i) ? with : without).push_back(rank);
    }
    if (with.empty() || without.empty()) continue;
    throw StepError("gradient-on-some-ranks",
                    subject() + ": parameter '" + names_[i] + "' has a gradient on " +
                        text_of_ranks(with, group_->world_size()) + " and none on " +
                        text_of_ranks(without, group_->world_size()) + ".",
                    "each of these ranks owns a part of it, so only some parts would be stepped.",
                    "give it a gradient on all ranks or on none, as DistributedDataParallel does.",
                    {without, "step"});
  }
}

void StepRound::check_parameters() const {
  const comm::Fingerprint first = reports_.head(0).parameters;
  const int other = reports_.find([&](const Head& each) { return each.parameters != first; });
  if (other != group_->world_size()) throw_that_parameters_differ(other, *group_);
}

}  // namespace farandole
