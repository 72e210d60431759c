// SPDX-License-Identifier: Apache-2.0
#include "optim/step/gradient_scatter.h"

#include <ATen/core/jit_type.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "ddp/gradient_move.h"
#include "farandole/error.h"
#include "optim/state/shard_state.h"
#include "process_group/torch_compat.h"

namespace farandole {
namespace {

bool is_gloo(const Group& group, const ShardPlan& plan) {
  if (plan.buckets.buckets.empty()) return false;
  const auto device = plan.buckets.buckets[0].device.type();
  return group->hasBackends() && group->getBackend(device)->getBackendName() == "gloo";
}

void check_can_be_added_up(const ShardPlan& plan) {
  for (const auto& bucket : plan.buckets.buckets) {
    if (plan.partition == Partition::kElements || !c10::isComplexType(bucket.dtype)) continue;
    throw NotSupported(
        "complex-whole-parameters",
        "gradients=\"shard\" got complex parameters that are assigned to one rank each.",
        "over groups without shared memory, shards of different lengths are reduced by code for "
        "real numbers only.",
        "use gradients=\"full\", partition=\"elements\", or Farandole's own groups.");
  }
}

}  // namespace

GradientScatter::GradientScatter(const Group& group, const ShardPlan& plan,
                                 std::optional<at::ScalarType> wire_dtype)
    : group_(group),
      plan_(plan),
      wire_dtype_(wire_dtype),
      is_gloo_(is_gloo(group, plan)),
      wires_(plan.buckets.buckets.size()),
      works_(plan.buckets.buckets.size()) {
  check_can_be_added_up(plan_);
  for (size_t bucket = 0; bucket < plan_.buckets.buckets.size(); ++bucket) {
    const auto& planned = plan_.buckets.buckets[bucket];
    const auto wire = wire_of(planned.dtype);
    const at::TensorOptions options = at::TensorOptions(planned.device);
    shards_.push_back(
        at::zeros({own_elements(bucket)},
                  options.dtype(wire ? state_dtype_of(planned.dtype) : planned.dtype)));
    if (!wire) continue;
    wires_[bucket].received =
        at::empty({own_elements(bucket) * plan_.world_size}, options.dtype(*wire));
    if (*wire == planned.dtype) continue;
    wires_[bucket].sent = at::empty({planned.padded_elements}, options.dtype(*wire));
  }
}

GradientScatter::~GradientScatter() = default;

int64_t GradientScatter::own_elements(size_t bucket) const {
  return plan_.shard_elements(bucket, group_->getRank());
}

std::optional<at::ScalarType> GradientScatter::wire_of(at::ScalarType dtype) const {
  const bool is_half = c10::isReducedFloatingType(dtype);
  if (c10::isComplexType(dtype)) return std::nullopt;
  const bool is_exchanged = is_whole() || (is_gloo_ && !is_half);
  if (!wire_dtype_) return is_exchanged ? std::optional(dtype) : std::nullopt;
  return is_half ? dtype : *wire_dtype_;
}

c10::intrusive_ptr<c10::ivalue::Future> GradientScatter::runHook(c10d::GradBucket& bucket) {
  const size_t index = bucket.getIndex();
  const at::Tensor gradients = bucket.getBuffer();
  // The padding follows the gradients.
  const at::Tensor padded = at::from_blob(
      gradients.mutable_data_ptr(), {plan_.buckets.buckets[index].padded_elements},
      [gradients](void*) {}, gradients.options(), gradients.device());
  const bool is_exchanged = wires_[index].received.defined();
  works_[index] = is_exchanged ? start_exchange(padded, index) : start_sum(padded, shards_[index]);
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  future->markCompleted(static_cast<int64_t>(index));
  return future;
}

c10::intrusive_ptr<c10d::Work> GradientScatter::start_sum(const at::Tensor& padded,
                                                          const at::Tensor& shard) const {
  c10d::ReduceScatterOptions options;
  options.reduceOp = c10d::ReduceOp::SUM;
  options.asyncOp = true;
  return reduce_scatter_single(*group_, shard, padded, options);
}

c10::intrusive_ptr<c10d::Work> GradientScatter::start_exchange(const at::Tensor& padded,
                                                               size_t bucket) const {
  const Wire& wire = wires_[bucket];
  if (wire.sent.defined()) move_gradient(padded, wire.sent, {});
  c10d::AllToAllOptions options;
  options.asyncOp = true;
  const at::Tensor& sent = wire.sent.defined() ? wire.sent : padded;
  std::vector<int64_t> received;
  std::vector<int64_t> lengths;
  if (is_whole()) {
    lengths = plan_.shard_lengths(bucket);
    received.assign(lengths.size(), own_elements(bucket));
  }
  return all_to_all_single(*group_, wire.received, sent, received, lengths, options);
}

at::Tensor GradientScatter::parseHookResult(const c10::IValue& result) {
  const auto index = static_cast<size_t>(result.toInt());
  if (const auto work = std::exchange(works_[index], {})) {
    work->wait();
    if (wires_[index].received.defined()) add_up(wires_[index].received, shards_[index]);
  }
  return shards_[index];
}

void GradientScatter::add_up(const at::Tensor& received, const at::Tensor& shard) const {
  if (shard.numel() == 0) return;
  for (int rank = 0; rank < plan_.world_size; ++rank) {
    GradientMove move;
    move.accumulate = rank > 0;
    move_gradient(received.narrow(0, rank * shard.numel(), shard.numel()), shard, move);
  }
}

}  // namespace farandole
