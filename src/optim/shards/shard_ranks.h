// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "farandole/ddp/replica.h"
#include "farandole/ddp/replica_group.h"
#include "farandole/optim/sharded_optimizer.h"
#include "optim/shards/shard_layout.h"

namespace farandole {

/// The ranks of a sharded optimizer, and the DistributedDataParallel whose gradients it uses.
///
/// Threads: one call at a time.
class ShardRanks {
 public:
  explicit ShardRanks(GradientMode mode) : mode_(mode) {}

  GradientMode mode() const { return mode_; }
  int rank() const { return group_->rank(); }
  int world_size() const { return group_->world_size(); }
  const std::shared_ptr<ReplicaGroup>& group() const { return group_; }
  /// Null if there is none that has all parameters, or it was destroyed.
  Replica* replica() const { return link_ ? link_->replica : nullptr; }
  const std::shared_ptr<ReplicaLink>& replica_link() const { return link_; }
  /// Whether the group is that of the DistributedDataParallel.
  bool are_of_replica() const;

  /// Finds the DistributedDataParallel that has all parameters. Local.
  void find_replica(const std::vector<at::Tensor>& parameters);
  /// The ranks of `group`; if it is empty, those of the DistributedDataParallel, otherwise the
  /// present ones, otherwise the default group. Collective.
  void choose_group(const farandole::Group& group);
  /// kShard needs every gradient of one DistributedDataParallel: throws InvalidArgument.
  void check_replica(const ShardLayout& layout) const;
  /// Throws InvalidArgument on every rank unless all have the same parameters. Collective.
  void check_same_parameters(const ShardLayout& layout, bool with_values) const;
  /// Numbers of every rank, in rank order. Collective.
  std::vector<double> all_gather(const std::vector<double>& numbers) const;

  /// Begins a change to other ranks (rebuild): choose_group(), then finds out who has the shards of
  /// `layout`. Throws InvalidArgument on all ranks, and undoes it, if a shard with state is lost.
  /// Collective for the new ranks.
  void begin_change(const farandole::Group& group, const ShardLayout& layout);
  /// The change has succeeded.
  void finish_change() noexcept;
  /// The ranks are those of before.
  void undo_change() noexcept;
  bool are_changing() const { return previous_group_ != nullptr; }
  /// In a change: which rank has shard r of the old ranks; -1: none. Empty otherwise.
  const std::vector<int>& owners() const { return owners_; }

 private:
  const GradientMode mode_;
  std::shared_ptr<ReplicaLink> link_;
  std::shared_ptr<ReplicaGroup> group_;
  std::shared_ptr<ReplicaGroup> previous_group_;  ///< null outside of a change
  std::vector<int> owners_;
};

}  // namespace farandole
