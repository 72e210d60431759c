// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "farandole/ddp/replica.h"
#include "farandole/ddp/replica_group.h"
#include "farandole/optim/sharded_optimizer.h"
#include "optim/shards/shard_layout.h"

namespace farandole {

/// The ranks of a sharded optimizer, and the DistributedDataParallel whose gradients it uses.
///
/// All of them (`everyone`) step together. The parameters are divided among all, or, with
/// ShardOver::kHost, among those of each host (`group`).
///
/// Threads: one call at a time.
class ShardRanks {
 public:
  ShardRanks(GradientMode mode, ShardOver shard_over) : mode_(mode), shard_over_(shard_over) {}

  GradientMode mode() const { return mode_; }
  ShardOver shard_over() const { return shard_over_; }
  const std::shared_ptr<ReplicaGroup>& everyone() const { return division_.everyone; }
  /// Those that share one set of shards with this rank, with rank() and world_size() among them.
  const std::shared_ptr<ReplicaGroup>& group() const { return division_.group; }
  int rank() const { return group()->rank(); }
  int world_size() const { return group()->world_size(); }
  /// Their numbers in everyone(), ascending.
  const std::vector<int>& sharers() const { return division_.sharers; }
  /// Null if there is none that has all parameters, or it was destroyed.
  Replica* replica() const { return link_ ? link_->replica : nullptr; }
  const std::shared_ptr<ReplicaLink>& replica_link() const { return link_; }
  /// Whether everyone() is the group of the DistributedDataParallel.
  bool are_of_replica() const;

  /// Finds the DistributedDataParallel that has all parameters. Local.
  void find_replica(const std::vector<at::Tensor>& parameters);
  /// The ranks of `group`; if it is empty, those of the DistributedDataParallel, otherwise the
  /// present ones, otherwise the default group. With kHost throws NotSupported over other backends
  /// than ours, and InvalidArgument if hosts would come to different results. Collective.
  void choose_group(const farandole::Group& group);
  /// kShard needs every gradient of one DistributedDataParallel: throws InvalidArgument.
  void check_replica(const ShardLayout& layout) const;
  /// Throws InvalidArgument on every rank unless all have the same parameters. Collective.
  void check_same_parameters(const ShardLayout& layout, bool with_values) const;
  /// Numbers of everyone(), in rank order. Collective.
  std::vector<double> all_gather(const std::vector<double>& numbers) const;

  /// Begins a change to other ranks (rebuild): choose_group(), then finds out who has the shards of
  /// `layout`. Throws InvalidArgument on all ranks, and undoes it, if a shard with state is lost.
  /// Collective for the new ranks.
  void begin_change(const farandole::Group& group, const ShardLayout& layout);
  /// The change has succeeded.
  void finish_change() noexcept;
  /// The ranks are those of before.
  void undo_change() noexcept;
  bool are_changing() const { return previous_.has_value(); }
  /// In a change: which rank has shard r of the old ranks; -1: none. Empty otherwise.
  const std::vector<int>& owners() const { return owners_; }

 private:
  /// Who steps together, and who shares shards.
  struct Division {
    std::shared_ptr<ReplicaGroup> everyone;
    std::shared_ptr<ReplicaGroup> group;
    std::vector<int> sharers;
  };

  std::shared_ptr<ReplicaGroup> everyone_of(const farandole::Group& group) const;
  void check_hosts(const ReplicaGroup& everyone) const;
  int first_lost_shard(const ShardLayout& layout) const;

  const GradientMode mode_;
  const ShardOver shard_over_;
  std::shared_ptr<ReplicaLink> link_;
  Division division_;
  std::optional<Division> previous_;  ///< in a change
  std::vector<int> owners_;
};

}  // namespace farandole
