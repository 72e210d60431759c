// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ddp/rank_reports.h"
#include "farandole/comm/fingerprint.h"
#include "farandole/ddp/replica_group.h"

namespace farandole {

/// What a rank reports to the others at the begin of a step.
struct StepReport {
  std::string description;         ///< the hyperparameters
  std::vector<bool> has_gradient;  ///< by parameter
  bool leaves_out = false;         ///< it has an Inf or NaN in a gradient: all ranks skip the step
  comm::Fingerprint parameters = {};  ///< of their values, if ranks are to compare them
};

/// The begin and the end of an optimizer step, where the ranks wait for each other.
///
/// Protocol. Step k on each rank is
///   enter: send k, a fingerprint of the hyperparameters and which parameters have gradients, and
///   in the first
///          step a fingerprint of their values; wait for all ranks. All ranks check the same
///          reports, and all throw, skip the step or continue.
///   then:  store own shards into the parameters of every rank.
///   leave: send the outcome; wait for all ranks.
/// So no parameter is stored before every rank has entered, and no rank returns before all stores
/// are visible: each end is an all_gather, which orders everything before it on any rank (release)
/// with everything after it on every rank (acquire). A rank that cannot enter, or fails within the
/// step, sends the reason instead of its report.
///
/// Errors: StepError on every rank, InvalidArgument for values that differ; otherwise what
/// collectives throw. Threads: one at a time.
class StepRound {
 public:
  /// `names`: of the parameters. `step`: the last one so far.
  StepRound(std::shared_ptr<ReplicaGroup> group, std::vector<std::string> names, uint64_t step);

  /// Begins a step. False if a rank skips it: then the step has ended on every rank. Collective.
  bool enter(const StepReport& report);
  /// Ends it. Collective.
  void leave();
  /// Call instead of enter(), or of leave() within a step: this rank has failed with `error`, which
  /// is sent to the others. `others_may_store`: the others may have taken the step. Does not throw.
  /// Collective.
  void fail(const std::string& error, bool others_may_store) noexcept;

  bool is_inside() const { return inside_; }
  /// The number of the current step, or the last one.
  uint64_t step() const { return step_; }

 private:
  /// What a report begins with; a bit for each parameter with a gradient follows.
  struct Head {
    uint32_t outcome;
    uint32_t others_may_store;  ///< of a failure
    uint64_t step;
    comm::Fingerprint description;
    comm::Fingerprint parameters;  ///< StepReport's
  };

  void exchange(const Head& head, const std::vector<bool>& bits);
  void check_failures();
  void check_steps();
  void check_descriptions(const std::string& own) const;
  void check_gradients() const;
  void check_parameters() const;
  bool has_gradient(int rank, size_t parameter) const;
  std::string subject() const;

  const std::shared_ptr<ReplicaGroup> group_;
  const std::vector<std::string> names_;
  RankReports<Head> reports_;
  uint64_t step_;
  bool inside_ = false;
};

}  // namespace farandole
