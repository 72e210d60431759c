// SPDX-License-Identifier: Apache-2.0
#include "optim/gradient_scatter.h"

#include <ATen/core/jit_type.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "process_group/torch_compat.h"

namespace farandole {

GradientScatter::GradientScatter(const Group& group, const ShardPlan& plan)
    : group_(group), plan_(plan), works_(plan.buckets.buckets.size()) {
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
  works_[index] = reduce_scatter_single(*group_, shards_[index], padded, options);
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  future->markCompleted(static_cast<int64_t>(index));
  return future;
}

at::Tensor GradientScatter::parseHookResult(const c10::IValue& result) {
  const auto index = static_cast<size_t>(result.toInt());
  if (const auto work = std::exchange(works_[index], {})) work->wait();
  return shards_[index];
}

}  // namespace farandole
