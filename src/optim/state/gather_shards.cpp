// SPDX-License-Identifier: Apache-2.0
#include "optim/state/gather_shards.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <string>

#include "farandole/error.h"
#include "process_group/torch_compat.h"

namespace farandole {
namespace {

/// A tensor like `parameter`, with `elements` in the order of its memory.
at::Tensor in_shape_of(const at::Tensor& parameter, const at::Tensor& elements) {
  return elements.contiguous().as_strided(parameter.sizes(), Buckets::strides_of_slot(parameter));
}

/// The dtype of the pieces of all ranks; ranks may have none.
at::ScalarType common_dtype(const ReplicaGroup& group, const std::vector<at::Tensor>& pieces) {
  const uint64_t own = pieces.empty() ? 0 : 1 + static_cast<uint64_t>(pieces[0].scalar_type());
  for (const uint64_t dtype : group.all_gather(own)) {
    if (dtype != 0) return static_cast<at::ScalarType>(dtype - 1);
  }
  return at::kFloat;
}

/// Broadcasts each shard, for shards that differ in length and while the ranks change.
at::Tensor broadcast_shards(const ShardRanks& ranks, const ShardPlan& plan, size_t bucket,
                            const at::Tensor& shard, int to) {
  at::Tensor all;
  const bool is_receiver = to < 0 || to == ranks.rank();
  if (is_receiver) all = at::empty({plan.buckets.buckets[bucket].padded_elements}, shard.options());
  const std::vector<int>& owners = ranks.owners();
  for (int old_rank = 0; old_rank < plan.world_size; ++old_rank) {
    const int64_t elements = plan.shard_elements(bucket, old_rank);
    if (elements == 0) continue;
    const int owner = owners.empty() ? old_rank : owners[static_cast<size_t>(old_rank)];
    at::Tensor piece = owner == ranks.rank() ? shard : at::zeros({elements}, shard.options());
    if (owner >= 0) ranks.group()->broadcast({piece}, owner);
    if (is_receiver) all.narrow(0, plan.shard_begin(bucket, old_rank), elements).copy_(piece);
  }
  return all;
}

/// This rank's shard of a bucket, of pieces from `next` on.
at::Tensor shard_of(const ShardLayout::Part& part, size_t bucket, at::ScalarType dtype,
                    const std::vector<at::Tensor>& pieces, size_t& next) {
  const ShardPlan& plan = part.flat->plan();
  const at::Device device = plan.buckets.buckets[bucket].device;
  const at::Tensor shard = at::zeros({plan.shard_elements(bucket, part.flat->rank())},
                                     at::TensorOptions(device).dtype(dtype));
  for (const ShardPiece& piece : part.flat->pieces()) {
    if (piece.bucket != bucket) continue;
    shard.narrow(0, piece.shard_offset, piece.elements).copy_(pieces[next++]);
  }
  return shard;
}

}  // namespace

at::Tensor gather_bucket(const ShardRanks& ranks, const ShardPlan& plan, size_t bucket,
                         const at::Tensor& shard, int to) {
  if (!ranks.owners().empty() || plan.partition == Partition::kParameters) {
    return broadcast_shards(ranks, plan, bucket, shard, to);
  }
  if (ranks.world_size() == 1) return shard;
  at::Tensor all;
  const bool is_receiver = to < 0 || to == ranks.rank();
  if (is_receiver) all = at::empty({ranks.world_size() * shard.numel()}, shard.options());
  const Group& group = ranks.group()->group();
  if (to < 0) {
    c10d::AllgatherOptions options;
    options.asyncOp = false;
    at::Tensor input = shard;
    const auto work = all_gather_single(*group, all, input, options);
    if (work) work->wait();
    return all;
  }
  c10d::GatherOptions options;
  options.rootRank = to;
  options.asyncOp = false;
  std::vector<at::Tensor> inputs{shard};
  std::vector<std::vector<at::Tensor>> outputs;
  if (is_receiver) outputs.push_back(all.chunk(ranks.world_size()));
  const auto work = group->gather(outputs, inputs, options);
  if (work) work->wait();
  return all;
}

std::vector<at::Tensor> gather_group(const ShardRanks& ranks, const ShardLayout& layout,
                                     size_t group, const std::vector<at::Tensor>& pieces, int to) {
  const c10::NoGradGuard no_grad;
  const std::vector<size_t>& indices = layout.group(group);
  if (to < -1 || to >= ranks.world_size()) {
    throw InvalidArgument(
        "gather-rank", "gather() got rank " + std::to_string(to) + ".",
        "the group has ranks 0 to " + std::to_string(ranks.world_size() - 1) + ".",
        "pass one of them, or -1 for all.");
  }
  const at::ScalarType dtype = common_dtype(*ranks.group(), pieces);
  std::vector<at::Tensor> whole(indices.size());
  size_t next = 0;
  for (const ShardLayout::Part& part : layout.parts()) {
    const ShardPlan& plan = part.flat->plan();
    for (size_t bucket = 0; bucket < plan.groups.size(); ++bucket) {
      if (plan.groups[bucket] != group) continue;
      const at::Tensor shard = shard_of(part, bucket, dtype, pieces, next);
      const at::Tensor all = gather_bucket(ranks, plan, bucket, shard, to);
      if (!all.defined()) continue;
      for (const auto& slot : plan.buckets.buckets[bucket].slots) {
        const auto& parameter = layout.parameters()[part.parameters[slot.parameter]];
        whole[parameter.index] =
            in_shape_of(parameter.tensor, all.narrow(0, slot.offset, slot.elements).clone());
      }
    }
  }
  if (to >= 0 && to != ranks.rank()) return {};
  for (size_t i = 0; i < whole.size(); ++i) {  // parameters without shards
    const at::Tensor& tensor = layout.tensors()[indices[i]];
    if (!whole[i].defined()) whole[i] = at::zeros(tensor.sizes(), tensor.options().dtype(dtype));
  }
  return whole;
}

}  // namespace farandole
