// SPDX-License-Identifier: Apache-2.0
#include "ddp/bucket_launcher.h"

#include <algorithm>
#include <utility>

#include "ddp/freed_memory.h"

namespace farandole {

BucketLauncher::BucketLauncher(PlannedBuckets& plan, GradientStore& gradients)
    : plan_(plan), gradients_(gradients), progress_(gradients.size()) {}

void BucketLauncher::change_plan() {
  is_launched_.assign(plan_.buckets ? plan_.buckets->size() : 0, false);
}

void BucketLauncher::begin(bool is_joined) {
  const auto& buckets = plan_.buckets->plan().buckets;
  missing_.assign(buckets.size(), 0);
  is_launched_.assign(buckets.size(), false);
  is_skipped_.assign(buckets.size(), false);
  next_to_launch_ = 0;
  streams_.assign(buckets.size(), {});
  gradients_.begin_moves(buckets.size());
  for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    for (const auto& slot : buckets[bucket].slots) {
      Progress& progress = progress_[slot.parameter];
      gradients_[slot.parameter].note_written();
      progress.is_ready = plan_.expected[slot.parameter] == 0 && !is_joined;
      if (progress.is_ready) {
        gradients_.fill_missing(slot.parameter, is_joined);
        note_stream(bucket);
      } else {
        gradients_[slot.parameter].open_slot();
        ++missing_[bucket];
      }
    }
  }
  for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    if (missing_[bucket] == 0 && !is_launched_[bucket]) launch(bucket);
  }
}

void BucketLauncher::count_early(int task) {
  for (size_t index = 0; index < progress_.size(); ++index) {
    // Inner graph tasks of checkpoints are later ones.
    if (std::exchange(progress_[index].early_task, -1) >= task) count(index);
  }
}

void BucketLauncher::count(size_t index) {
  Progress& progress = progress_[index];
  ++progress.gradients;
  if (!plan_.consumer) return;
  ParameterGradient& parameter = gradients_[index];
  if (progress.gradients == plan_.expected[index] && parameter.has_slot() &&
      parameter.move_into_slot()) {
    mark_ready(index);
  }
  plan_.consumer->progress();
}

bool BucketLauncher::is_launched(size_t index) const {
  return plan_.consumer && gradients_[index].has_slot() && is_launched_[plan_.bucket_of[index]];
}

void BucketLauncher::mark_ready(size_t index) {
  Progress& progress = progress_[index];
  if (progress.is_ready) return;
  progress.is_ready = true;
  gradients_[index].close_slot();
  const size_t bucket = plan_.bucket_of[index];
  note_stream(bucket);
  if (--missing_[bucket] == 0) launch(bucket);
}

void BucketLauncher::note_stream(size_t bucket) {
  streams_[bucket].note(plan_.buckets->plan().buckets[bucket].device);
}

/// Launches a full bucket, or leaves it to the one before it in the plan.
void BucketLauncher::launch(size_t bucket) {
  if (plan_.consumer->in_plan_order()) return launch_in_plan_order();
  launch_full(bucket);
}

void BucketLauncher::launch_full(size_t bucket) {
  is_launched_[bucket] = true;
  streams_[bucket].join();
  gradients_.finish_moves(bucket);
  for (const auto& slot : plan_.buckets->plan().buckets[bucket].slots) {
    gradients_[slot.parameter].note_written();
  }
  plan_.consumer->launch(bucket);
}

void BucketLauncher::launch_in_plan_order() {
  for (; next_to_launch_ < missing_.size(); ++next_to_launch_) {
    if (is_skipped_[next_to_launch_]) {
      plan_.consumer->skip(next_to_launch_);
    } else if (missing_[next_to_launch_] == 0) {
      launch_full(next_to_launch_);
    } else {
      return;
    }
  }
}

bool BucketLauncher::launch_rest(const Rules& rules) {
  bool complete = true;
  FreedMemory freed(plan_.unsettled > 0);
  if (!rules.skipped.empty()) skip(rules.skipped);
  for (size_t index = 0; index < gradients_.size(); ++index) {
    ParameterGradient& parameter = gradients_[index];
    const Progress& progress = progress_[index];
    if (progress.is_late) complete = false;
    if (progress.is_ready) continue;
    const bool counts = rules.counts_unused || rules.is_joined || !parameter.is_active();
    if (progress.gradients == 0 && !counts) {
      complete = false;
      continue;
    }
    if (!parameter.has_slot() || is_skipped_[plan_.bucket_of[index]]) continue;
    if (progress.gradients == 0 || is_empty(index)) {
      gradients_.fill_missing(index, rules.is_joined);
    } else {
      const bool moves = !parameter.is_in_slot();
      parameter.move_into_slot();
      if (moves) freed.add(parameter.parameter().nbytes());
    }
    mark_ready(index);
  }
  return complete;
}

std::vector<bool> BucketLauncher::unused(bool is_joined) const {
  BackwardReport own;
  own.flags = is_joined ? BackwardReport::kJoined : 0U;
  own.gradients = outcomes();
  std::vector<bool> unused;
  for (size_t bucket = 0; bucket < missing_.size(); ++bucket) {
    unused.push_back(!is_launched_[bucket] && is_skipped(own, bucket));
  }
  return unused;
}

void BucketLauncher::skip(const std::vector<bool>& skipped) {
  for (size_t bucket = 0; bucket < missing_.size(); ++bucket) {
    if (!skipped[bucket]) continue;
    is_skipped_[bucket] = true;
    if (!plan_.consumer->in_plan_order()) plan_.consumer->skip(bucket);
  }
  if (plan_.consumer->in_plan_order()) launch_in_plan_order();
}

/// Whether the rank of `report` has skipped the bucket.
bool BucketLauncher::is_skipped(const BackwardReport& report, size_t bucket) const {
  const auto& slots = plan_.buckets->plan().buckets[bucket].slots;
  return !report.has(BackwardReport::kJoined) &&
         std::none_of(slots.begin(), slots.end(),
                      [&](const auto& slot) { return report.has_gradient(slot.parameter); });
}

void BucketLauncher::check_skipped(const std::vector<BackwardReport>& reports,
                                   const BackwardContext& context) const {
  for (size_t bucket = 0; bucket < missing_.size(); ++bucket) {
    std::vector<int> ranks;
    for (size_t rank = 0; rank < reports.size(); ++rank) {
      if (is_skipped(reports[rank], bucket)) ranks.push_back(static_cast<int>(rank));
    }
    if (ranks.empty() || ranks.size() == reports.size()) continue;
    const size_t first = plan_.buckets->plan().buckets[bucket].slots[0].parameter;
    throw_skipped(ranks, gradients_.names()[first], context, reports.size());
  }
}

/// Whether autograd produced nothing but undefined gradients.
bool BucketLauncher::is_empty(size_t index) const {
  return progress_[index].gradients > 0 && !gradients_[index].parameter().grad().defined();
}

BackwardReport::Gradient BucketLauncher::outcome_of(size_t index) const {
  const Progress& progress = progress_[index];
  if (progress.is_late) return BackwardReport::kLate;
  if (is_empty(index)) return BackwardReport::kEmpty;
  if (progress.gradients > 0 || !gradients_[index].is_active()) return BackwardReport::kReady;
  return gradients_.was_touched(index) ? BackwardReport::kEarlier : BackwardReport::kNone;
}

std::vector<uint8_t> BucketLauncher::outcomes() const {
  std::vector<uint8_t> outcomes;
  outcomes.reserve(progress_.size());
  for (size_t index = 0; index < progress_.size(); ++index) {
    outcomes.push_back(outcome_of(index));
  }
  return outcomes;
}

void BucketLauncher::expect_as_now() {
  for (size_t index = 0; index < progress_.size(); ++index) {
    plan_.expected[index] = progress_[index].gradients;
  }
}

void BucketLauncher::end_backward() {
  for (size_t index = 0; index < progress_.size(); ++index) {
    Progress& progress = progress_[index];
    int& expected = plan_.expected[index];
    if (expected != 0 || progress.gradients != 0) expected = std::max(expected, progress.gradients);
    progress = {};
  }
}

}  // namespace farandole
