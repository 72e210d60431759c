// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ddp/arrival_streams.h"
#include "ddp/backward_report.h"
#include "ddp/check_backward.h"
#include "ddp/gradient_store.h"
#include "ddp/planned_buckets.h"

namespace farandole {

/// Counts gradients in a synchronized backward, and launches each bucket when all of its gradients
/// have arrived.
///
/// Threads: one call at a time. Indices are those of the parameters.
class BucketLauncher {
 public:
  /// How a backward treats parameters without a gradient.
  struct Rules {
    bool counts_unused = false;  ///< as zero; otherwise they make the backward incomplete
    bool is_joined = false;      ///< this rank has nothing to add at all
    std::vector<bool> skipped;   ///< by bucket: not reduced; empty: all are
  };

  /// Both are the Reducer's, and live longer.
  BucketLauncher(PlannedBuckets& plan, GradientStore& gradients);

  /// The plan is another one.
  void change_plan();
  /// A backward begins whose consumer has begun: empty buckets, none launched. Launches those that
  /// never get a gradient (static graph).
  void begin(bool is_joined);
  /// Counts gradients that arrived in graph task `task` or in one within it before the backward was
  /// known to have begun.
  void count_early(int task);
  /// A gradient has arrived before that.
  void note_early(size_t index, int task) { progress_[index].early_task = task; }
  /// A gradient has arrived, and is in its slot if it could be moved there.
  void count(size_t index);
  /// Whether the bucket of the parameter was launched in this backward.
  bool is_launched(size_t index) const;
  /// A gradient arrives after that.
  void note_late(size_t index) { progress_[index].is_late = true; }
  /// The buckets in which no parameter has got a gradient on this rank, by bucket.
  std::vector<bool> unused(bool is_joined) const;
  /// Backward has ended: brings every gradient that is not in its slot there, and launches the
  /// buckets that are left. False if a gradient is missing or came too late.
  bool launch_rest(const Rules& rules);

  /// What came of each parameter's gradient on this rank: BackwardReport::Gradient.
  std::vector<uint8_t> outcomes() const;
  /// Throws BackwardError on every rank if one has skipped a bucket that others have not.
  void check_skipped(const std::vector<BackwardReport>& reports,
                     const BackwardContext& context) const;
  /// All backward passes will have as many gradients as this one.
  void expect_as_now();
  /// The backward is over.
  void end_backward();

 private:
  /// A parameter in the current synchronized backward.
  struct Progress {
    int gradients = 0;  ///< that have arrived
    bool is_ready = false;
    bool is_late = false;  ///< a gradient arrived after its bucket was launched
    int early_task = -1;   ///< graph task of a gradient that arrived before the begin
  };

  void mark_ready(size_t index);
  void note_stream(size_t bucket);
  void launch(size_t bucket);
  void launch_full(size_t bucket);
  void launch_in_plan_order();
  void skip(const std::vector<bool>& skipped);
  bool is_skipped(const BackwardReport& report, size_t bucket) const;
  bool is_empty(size_t index) const;
  BackwardReport::Gradient outcome_of(size_t index) const;

  PlannedBuckets& plan_;
  GradientStore& gradients_;
  std::vector<ArrivalStreams> streams_;  ///< by bucket
  std::vector<Progress> progress_;       ///< by parameter
  std::vector<int64_t> missing_;         ///< by bucket: parameters that are not ready
  std::vector<bool> is_launched_;        ///< by bucket
  std::vector<bool> is_skipped_;         ///< by bucket: unused, and not reduced
  size_t next_to_launch_ = 0;            ///< in the order of the plan
};

}  // namespace farandole
