// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "farandole/ddp/comm_hook.h"
#include "farandole/optim/shard_plan.h"
#include "farandole/process_group/init.h"

namespace farandole {

/// Adds the buckets of all ranks while backward runs, each rank its own shards, into separate
/// memory: buckets keep this rank's own gradients. For groups without shared memory.
///
/// Without a wire dtype it uses a reduce_scatter in the dtype of the bucket. With a wire dtype it
/// uses an all_to_all: each rank sends to each rank the shard that the other owns, in the wire
/// dtype (float32 and float64) or unchanged (half types), and the owner adds in rank order, in
/// float32, or float64 for a bucket of float64. So a gradient is rounded once. Complex buckets have
/// no wire dtype. gloo's reduce_scatter moves as much as an all_reduce, so float32 and float64 use
/// the all_to_all over gloo in any case, as do shards of whole parameters, which differ in length.
/// Bytes sent per rank, at least: (world_size - 1) / world_size of its gradients, in the type in
/// which they are sent. Memory for each bucket that is exchanged, kept from step to step: the
/// received shards, and the sent ones if they have another dtype.
class GradientScatter final : public CommHook {
 public:
  /// Buckets are those of `plan`. Throws NotSupported for complex parameters of
  /// Partition::kParameters.
  GradientScatter(const Group& group, const ShardPlan& plan,
                  std::optional<at::ScalarType> wire_dtype = {});
  ~GradientScatter() override;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  /// Waits for the bucket: gloo's reduce_scatter has no future.
  at::Tensor parseHookResult(const c10::IValue& result) override;
  /// This rank's shard of a bucket after the last backward; float32 for a bucket of a half type if
  /// there is a wire dtype.
  const at::Tensor& shard(size_t bucket) const { return shards_[bucket]; }
  /// The type in which a bucket of `dtype` is sent; nullopt: unchanged, by a reduce_scatter.
  std::optional<at::ScalarType> wire_of(at::ScalarType dtype) const;

 private:
  /// The tensors of a bucket that is exchanged.
  struct Wire {
    at::Tensor sent;      ///< undefined: the bucket itself
    at::Tensor received;  ///< from each rank in turn
  };
  c10::intrusive_ptr<c10d::Work> start_sum(const at::Tensor& padded, const at::Tensor& shard) const;
  c10::intrusive_ptr<c10d::Work> start_exchange(const at::Tensor& padded, size_t bucket) const;
  bool is_whole() const { return plan_.partition == Partition::kParameters; }
  int64_t own_elements(size_t bucket) const;
  void add_up(const at::Tensor& received, const at::Tensor& shard) const;

  const Group group_;
  const ShardPlan plan_;
  const std::optional<at::ScalarType> wire_dtype_;
  const bool is_gloo_;
  std::vector<at::Tensor> shards_;
  std::vector<Wire> wires_;                            ///< by bucket
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;  ///< by bucket, under way
};

}  // namespace farandole
