// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "farandole/ddp/replica_group.h"

namespace farandole {

/// What a rank tells of a step before it changes anything.
struct StepNote {
  std::string description;         ///< the hyperparameters
  std::vector<bool> has_gradient;  ///< by parameter
  bool leaves_out = false;         ///< a gradient is Inf or NaN here: no rank is to take the step
  uint64_t parameters = 0;         ///< a hash of their values, where ranks are to compare them
};

/// The two ends of an optimizer step, at which the ranks wait for each other.
///
/// Protocol. Step k on each rank is
///   enter: tell k, a hash of the hyperparameters and which parameters have gradients, in the first
///          step also a hash of their values; wait until all have told; all judge the same notes,
///          and throw or leave the step out alike.
///   then:  store own shards into the parameters of every rank.
///   leave: tell how that went; wait until all have told.
/// So no parameter is stored before every rank has entered, and none returns before all stores are
/// seen: each end is an all_gather, which orders what came before it on any rank (release) with
/// what comes after it on every rank (acquire). A rank that cannot enter, or is done without having
/// done its part, says why in place of its note.
///
/// Errors: StepError on every rank, InvalidArgument for values that differ; else what collectives
/// throw. Threads: one at a time.
class StepRound {
 public:
  /// `names`: of the parameters. `step`: the last one so far.
  StepRound(std::shared_ptr<ReplicaGroup> group, std::vector<std::string> names, uint64_t step);

  /// Begins a step. False if a rank leaves it out: then it has ended, on every rank. Collective.
  bool enter(const StepNote& note);
  /// Ends it. Collective.
  void leave();
  /// Instead of enter(), or of leave() within a step: this rank has met `error`, which the others
  /// get. Does not throw. Collective.
  void fail(const std::string& error) noexcept;

  bool is_inside() const { return inside_; }
  /// Of the present step, or the last one.
  uint64_t step() const { return step_; }

 private:
  struct Head;

  void exchange(const Head& head, const std::vector<bool>& bits);
  const std::byte* message_of(int rank) const {
    return all_.data() + static_cast<size_t>(rank) * bytes_;
  }
  Head head_of(int rank) const;
  void judge_failures();
  void judge_steps();
  void judge_descriptions(const std::string& own) const;
  void judge_gradients() const;
  void judge_parameters() const;
  bool has_gradient(int rank, size_t parameter) const;
  std::string subject() const;

  const std::shared_ptr<ReplicaGroup> group_;
  const std::vector<std::string> names_;
  const size_t bytes_;  ///< of a message
  std::vector<std::byte> own_;
  std::vector<std::byte> all_;  ///< messages by rank
  uint64_t step_;
  bool inside_ = false;
};

}  // namespace farandole
