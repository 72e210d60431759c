// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ddp/gradient_store.h"
#include "ddp/kept_plans.h"
#include "ddp/planned_buckets.h"
#include "farandole/ddp/bucket_plan.h"
#include "farandole/ddp/reducer.h"
#include "farandole/ddp/replica_group.h"

namespace farandole {

/// Plans buckets in the order in which gradients arrive on rank 0, and keeps the plans of
/// parameters that were active before.
///
/// Threads: one call at a time.
class BucketPlanner {
 public:
  /// References are those of the Reducer, and live longer.
  BucketPlanner(const ReplicaGroup& group, const Reducer::Options& options,
                GradientStore& gradients, PlannedBuckets& plan);

  /// Parameters are about to be read anew: empties the plan. `keeps`: keeps the old one. Local.
  void put_away(bool keeps);
  /// Parameters have been read anew: continues with the kept plan for them if there is one. Local.
  void take_plan();
  /// Drops the plans that are not in use.
  void forget_kept() { kept_.clear(); }
  /// A gradient of this parameter has arrived. Counts until there is a plan.
  void note_arrival(size_t parameter);
  /// Where buckets lie, if there is such memory.
  struct Memory {
    bool shared;      ///< of the CPU: in symmetric memory
    bool registered;  ///< of accelerators: in memory that collectives of the group know
  };
  /// Makes the buckets of the plan, or takes those that a sharded optimizer has planned, and
  /// assigns the slots. Throws BackwardError on every rank if the ranks have other parameters.
  /// Collective.
  void make_buckets(const std::optional<BucketPlan>& planned, Memory memory);
  /// The plan can be used from now on.
  void finish_plan();
  /// A synchronized backward with the plan was successful.
  void note_success();
  /// Made so far.
  uint64_t plans() const { return plans_; }

 private:
  PlannedBuckets empty_plan() const;
  std::vector<int64_t> first_order() const;
  BucketPlan own_plan() const;
  void check_planned(const BucketPlan& plan) const;
  void check_same_plan(const BucketPlan& plan) const;
  void assign_buckets();

  const ReplicaGroup& group_;
  const Reducer::Options& options_;
  GradientStore& gradients_;
  PlannedBuckets& plan_;
  KeptPlans kept_;
  std::vector<size_t> order_;     ///< parameters as their first gradients arrived
  std::vector<bool> is_ordered_;  ///< by parameter: is in order_
  uint64_t rounds_ = 0;           ///< successful backward passes, on every rank
  uint64_t plans_ = 0;
};

}  // namespace farandole
