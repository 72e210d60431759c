// SPDX-License-Identifier: Apache-2.0
#include "optim/gradient_scatter.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "process_group/torch_compat.h"

namespace farandole {

GradientScatter::GradientScatter(const Group& group, const ShardPlan& plan)
    : group_(group), plan_(plan) {
  for (size_t bucket = 0; bucket < plan_.buckets.buckets.size(); ++bucket) {
    const auto& planned = plan_.buckets.buckets[bucket];
    shards_.push_back(at::zeros({plan_.shard_elements(bucket)},
                                at::TensorOptions(planned.device).dtype(planned.dtype)));
  }
}

GradientScatter::~GradientScatter() = default;

c10::intrusive_ptr<c10::ivalue::Future> GradientScatter::runHook(c10d::GradBucket& bucket) {
  const size_t index = bucket.getIndex();
  const at::Tensor gradients = bucket.getBuffer();
  // The padding lies behind it.
  const at::Tensor padded = at::from_blob(
      gradients.mutable_data_ptr(), {plan_.buckets.buckets[index].padded_elements},
      [gradients](void*) {}, gradients.options());
  c10d::ReduceScatterOptions options;
  options.reduceOp = c10d::ReduceOp::SUM;
  options.asyncOp = true;
  return reduce_scatter_single(*group_, shards_[index], padded, options)->getFuture();
}

}  // namespace farandole
