// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "farandole/ddp/comm_hook.h"
#include "farandole/optim/shard_plan.h"
#include "farandole/process_group/init.h"

namespace farandole {

/// Adds up the buckets of all ranks while backward runs, each rank its own shards, into memory
/// apart: buckets keep this rank's own gradients. For groups without shared memory.
/// Bytes sent by a rank, at least: (world_size - 1) / world_size of its gradients.
class GradientScatter final : public CommHook {
 public:
  /// Buckets are those of `plan`.
  GradientScatter(const Group& group, const ShardPlan& plan);
  ~GradientScatter() override;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  /// Waits for the bucket: gloo's reduce_scatter has no future.
  at::Tensor parseHookResult(const c10::IValue& result) override;
  /// This rank's shard of a bucket, as the last backward left it.
  const at::Tensor& shard(size_t bucket) const { return shards_[bucket]; }

 private:
  const Group group_;
  const ShardPlan plan_;
  std::vector<at::Tensor> shards_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;  ///< by bucket, under way
};

}  // namespace farandole
