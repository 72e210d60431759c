// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "ddp/slot_tensor.h"
#include "farandole/ddp/bucket.h"
#include "farandole/ddp/replica_group.h"
#include "farandole/optim/shard_plan.h"

namespace farandole {

/// Parameters as views of the buckets of a ShardPlan, in memory that all ranks map if the group has
/// shared memory: then a rank stores new values straight into the memory of the others.
///
/// The views are tensors of their own for autograd and torch.save. They keep the memory alive, also
/// after this object and the group are gone. A parameter whose memory the program sees in another
/// way (as part of a flat vector, in a state_dict(), from another process) stays there: its values
/// are copied into the bucket before a step, and back after it. What the program keeps of a
/// parameter that it has pointed to other memory (p.data = ...) does not change any more. Threads:
/// one at a time.
class FlatParameters {
 public:
  /// Moves `parameters` into buckets, with this rank's values. `names` are for messages. They do
  /// not overlap. Collective.
  FlatParameters(std::vector<at::Tensor> parameters, std::vector<std::string> names, ShardPlan plan,
                 const ReplicaGroup& group);

  int rank() const { return rank_; }
  const ShardPlan& plan() const { return plan_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// What this rank owns.
  const std::vector<ShardPiece>& pieces() const { return pieces_; }
  bool is_shared() const { return buckets_.symmetric() != nullptr; }

  /// Moves a parameter back that the program has moved to other memory
  /// (load_state_dict(assign=True)), with its new values; copies those of one that stays there.
  /// Throws InvalidArgument if its dtype, device or shape has changed.
  void take_values();
  /// Whether a parameter is in other memory.
  bool has_outside() const;
  /// Copies the new values of those parameters from the buckets.
  void publish_outside() const;
  /// The address of this rank's `piece` in the memory of `rank`, which is this rank unless the
  /// memory is shared.
  std::byte* address_of(const ShardPiece& piece, int rank) const;
  /// The elements of a piece as a tensor of one dimension, in the parameter's own memory.
  at::Tensor tensor_of(const ShardPiece& piece) const;
  /// This rank's shard of a bucket, padding included.
  at::Tensor own_shard(size_t bucket) const {
    return shard_of(buckets_.padded(bucket), bucket, rank_);
  }
  /// Elements of a whole parameter, in the order of its memory, as a tensor of its shape.
  at::Tensor in_shape(size_t parameter, const at::Tensor& elements) const;
  /// Begins to send the shards of a bucket to all ranks, and appends what to wait for. Collective
  /// without shared memory.
  void gather(size_t bucket, std::vector<c10::intrusive_ptr<c10d::Work>>& works) const;

 private:
  at::Tensor shard_of(const at::Tensor& padded, size_t bucket, int rank) const;
  bool is_inside(size_t parameter) const;
  void take_value(size_t parameter);
  void check_unchanged(size_t parameter) const;

  const std::vector<at::Tensor> parameters_;
  const std::vector<std::string> names_;
  const ShardPlan plan_;
  const Group group_;
  const int rank_;
  const Buckets buckets_;
  const std::vector<ShardPiece> pieces_;
  std::vector<at::Tensor> slots_;  ///< by parameter
  std::vector<SlotTensor> own_;    ///< what each parameter is that is in its slot
};

}  // namespace farandole
