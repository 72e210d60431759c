// SPDX-License-Identifier: Apache-2.0
#include "optim/state/gather_shards.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "farandole/error.h"
#include "optim/shards/joint_change.h"
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

/// Whether each shard is broadcast: shards differ in length, or the ranks change.
bool are_broadcast(const ShardRanks& ranks, const ShardPlan& plan) {
  return !ranks.owners().empty() || plan.partition == Partition::kParameters;
}

bool is_receiver(const ShardRanks& ranks, int to) { return to < 0 || to == ranks.rank(); }

void broadcast_shards(const ShardRanks& ranks, const ShardPlan& plan, size_t bucket,
                      const at::Tensor& shard, int to, const at::Tensor& space) {
  const std::vector<int>& owners = ranks.owners();
  const bool is_kept = is_receiver(ranks, to);
  for (int old_rank = 0; old_rank < plan.world_size; ++old_rank) {
    const int64_t elements = plan.shard_elements(bucket, old_rank);
    if (elements == 0) continue;
    const int owner = owners.empty() ? old_rank : owners[static_cast<size_t>(old_rank)];
    at::Tensor piece = space.narrow(0, is_kept ? plan.shard_begin(bucket, old_rank) : 0, elements);
    if (owner == ranks.rank()) piece.copy_(shard);
    if (owner < 0) piece.zero_();
    if (owner >= 0) ranks.group()->broadcast({piece}, owner);
  }
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

/// Puts the elements of a bucket into the tensors of the parameters.
void keep(const ShardLayout& layout, const ShardLayout::Part& part, size_t bucket,
          const at::Tensor& all, std::vector<at::Tensor>& whole) {
  for (const auto& slot : part.flat->plan().buckets.buckets[bucket].slots) {
    const auto& parameter = layout.parameters()[part.parameters[slot.parameter]];
    whole[parameter.index] =
        in_shape_of(parameter.tensor, all.narrow(0, slot.offset, slot.elements).clone());
  }
}

}  // namespace

at::Tensor gather_space(const ShardRanks& ranks, const ShardPlan& plan, size_t bucket,
                        const at::Tensor& shard, int to) {
  const bool is_kept = is_receiver(ranks, to);
  if (are_broadcast(ranks, plan)) {
    int64_t elements = is_kept ? plan.buckets.buckets[bucket].padded_elements : 0;
    for (int rank = 0; !is_kept && rank < plan.world_size; ++rank) {
      elements = std::max(elements, plan.shard_elements(bucket, rank));
    }
    return at::empty({elements}, shard.options());
  }
  if (ranks.world_size() == 1) return shard;
  return is_kept ? at::empty({ranks.world_size() * shard.numel()}, shard.options()) : at::Tensor();
}

at::Tensor gather_bucket(const ShardRanks& ranks, const ShardPlan& plan, size_t bucket,
                         const at::Tensor& shard, int to, at::Tensor space) {
  if (are_broadcast(ranks, plan)) {
    broadcast_shards(ranks, plan, bucket, shard, to, space);
    return is_receiver(ranks, to) ? space : at::Tensor();
  }
  if (ranks.world_size() == 1) return space;
  const Group& group = ranks.group()->group();
  if (to < 0) {
    c10d::AllgatherOptions options;
    options.asyncOp = false;
    at::Tensor input = shard;
    const auto work = all_gather_single(*group, space, input, options);
    if (work) work->wait();
    return space;
  }
  c10d::GatherOptions options;
  options.rootRank = to;
  options.asyncOp = false;
  std::vector<at::Tensor> inputs{shard};
  std::vector<std::vector<at::Tensor>> outputs;
  if (space.defined()) outputs.push_back(space.chunk(ranks.world_size()));
  const auto work = group->gather(outputs, inputs, options);
  if (work) work->wait();
  return space;
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
  const char* const call = to < 0 ? "rebuild()" : "consolidate_state_dict()";
  std::vector<at::Tensor> whole(indices.size());
  size_t next = 0;
  std::function<void()> keep_last = [] {};  // what has arrived
  for (const ShardLayout::Part& part : layout.parts()) {
    const ShardPlan& plan = part.flat->plan();
    for (size_t bucket = 0; bucket < plan.groups.size(); ++bucket) {
      if (plan.groups[bucket] != group) continue;
      at::Tensor shard;
      at::Tensor space;
      const auto prepare = [&] {
        std::exchange(keep_last, [] {})();
        shard = shard_of(part, bucket, dtype, pieces, next);
        space = gather_space(ranks, plan, bucket, shard, to);
      };
      change_together(*ranks.group(), call, prepare, [] {});
      const at::Tensor all = gather_bucket(ranks, plan, bucket, shard, to, std::move(space));
      keep_last = [&layout, &part, &whole, bucket, all, to] {
        if (all.defined()) keep(layout, part, bucket, to < 0 ? all : all.cpu(), whole);
      };
    }
  }
  const auto complete = [&] {
    keep_last();
    if (!is_receiver(ranks, to)) return whole.clear();
    for (size_t i = 0; i < whole.size(); ++i) {  // parameters without shards
      const at::Tensor& tensor = layout.tensors()[indices[i]];
      const auto options = tensor.options().device(to < 0 ? tensor.device() : at::kCPU);
      if (!whole[i].defined()) whole[i] = at::zeros(tensor.sizes(), options.dtype(dtype));
    }
  };
  change_together(*ranks.group(), call, complete, [] {});
  return whole;
}

}  // namespace farandole
