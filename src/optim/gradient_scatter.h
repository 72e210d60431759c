// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "farandole/ddp/comm_hook.h"
#include "farandole/optim/shard_plan.h"
#include "farandole/process_group/init.h"

namespace farandole {

/// Adds up the buckets of all ranks while backward runs, each rank its own shards, into memory
/// apart: buckets keep this rank's own gradients. For groups without shared memory.
///
/// Without a wire dtype by a reduce_scatter, in the dtype of the bucket. With one each rank sends
/// to each the shard that it owns, as that dtype (float32 and float64) or as it is (half types), by
/// an all_to_all; the owner adds up what came in rank order, in float32, or float64 for a bucket of
/// float64. So a gradient is rounded once on its way. Complex buckets go without. Gloo, whose
/// reduce_scatter moves as much as an all_reduce, gets float32 and float64 so in any case. So do
/// all groups the shards of whole parameters, which have several lengths.
/// Bytes sent by a rank, at least: (world_size - 1) / world_size of its gradients, as they travel.
/// Memory for each bucket that is exchanged, kept from step to step: what comes, and what is sent
/// if that is of another dtype.
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
  /// This rank's shard of a bucket, as the last backward left it. Of float32 for a bucket of a half
  /// type if there is a wire dtype.
  const at::Tensor& shard(size_t bucket) const { return shards_[bucket]; }
  /// What a bucket of `dtype` travels as; nullopt: by a reduce_scatter, as it is.
  std::optional<at::ScalarType> wire_of(at::ScalarType dtype) const;

 private:
  /// What travels of a bucket that is exchanged.
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
