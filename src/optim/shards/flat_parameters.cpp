// SPDX-License-Identifier: Apache-2.0
#include "optim/shards/flat_parameters.h"

#include <ATen/MapAllocator.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "ddp/stream_use.h"
#include "farandole/error.h"
#include "process_group/torch_compat.h"

namespace farandole {
namespace {

/// Whether the memory of `tensor` is shared with other processes (share_memory()).
bool is_shared_by_torch(const at::Tensor& tensor) {
  const at::DataPtr& data = tensor.storage().data_ptr();
  return at::MapAllocator::fromDataPtr(data) != nullptr ||
         at::RefcountedMapAllocator::fromDataPtr(data) != nullptr;
}

}  // namespace

FlatParameters::FlatParameters(std::vector<at::Tensor> parameters, std::vector<std::string> names,
                               ShardPlan plan, const ReplicaGroup& group)
    : parameters_(std::move(parameters)),
      names_(std::move(names)),
      plan_(std::move(plan)),
      group_(group.group()),
      rank_(group.rank()),
      buckets_(plan_.buckets, group.shared_memory()),
      pieces_(plan_.pieces_of(group.rank())),
      slots_(parameters_.size()),
      addresses_(parameters_.size()) {
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (const auto& slot : plan_.buckets.buckets[bucket].slots) {
      slots_[slot.parameter] = buckets_.slot_tensor(bucket, slot, parameters_[slot.parameter]);
      addresses_[slot.parameter] = slots_[slot.parameter].const_data_ptr();
      move_in(slot.parameter);
    }
  }
}

void FlatParameters::move_in(size_t parameter) {
  const c10::NoGradGuard no_grad;
  const at::Tensor& slot = slots_[parameter];
  const at::Tensor before = parameters_[parameter].detach();
  slot.copy_(before);
  keep_for_current_stream(before);
  parameters_[parameter].set_data(slot);
}

void FlatParameters::bring_home() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i];
    if (parameter.const_data_ptr() == addresses_[i] &&
        parameter.scalar_type() == slots_[i].scalar_type() &&
        parameter.sizes() == slots_[i].sizes() && parameter.strides() == slots_[i].strides()) {
      continue;
    }
    check_unchanged(i);
    move_in(i);
  }
}

void FlatParameters::check_unchanged(size_t index) const {
  const at::Tensor& now = parameters_[index];
  const at::Tensor& slot = slots_[index];
  if (now.scalar_type() != slot.scalar_type() || now.device() != slot.device() ||
      now.sizes() != slot.sizes()) {
    throw InvalidArgument(
        "parameter-changed",
        "parameter '" + names_[index] +
            "' has a different dtype, device or shape since the sharded optimizer was made.",
        "its state and its slot in the shards are for " +
            std::string(c10::toString(slot.scalar_type())) + " on " + slot.device().str() + ".",
        "convert the module before you make the optimizer, or call rebuild() on every rank.");
  }
  if (now.numel() != 0 && is_shared_by_torch(now)) {
    throw InvalidArgument("parameter-shared",
                          "parameter '" + names_[index] +
                              "' was moved into memory that torch shares with other "
                              "processes.",
                          "a sharded optimizer keeps parameters in its own memory, and moving this "
                          "one back would end that sharing.",
                          "send a copy instead: parameter.detach().clone().");
  }
}

std::byte* FlatParameters::address_of(const ShardPiece& piece, int rank) const {
  const auto bytes =
      static_cast<int64_t>(c10::elementSize(plan_.buckets.buckets[piece.bucket].dtype));
  if (!is_shared()) {
    auto* data = static_cast<std::byte*>(slots_[piece.parameter].mutable_data_ptr());
    return data + piece.parameter_offset * bytes;
  }
  auto* memory = static_cast<std::byte*>(buckets_.symmetric()->peer(rank));
  return memory + plan_.buckets.buckets[piece.bucket].offset_bytes + piece.bucket_offset * bytes;
}

at::Tensor FlatParameters::tensor_of(const ShardPiece& piece) const {
  return slots_[piece.parameter].as_strided({piece.elements}, {1}, piece.parameter_offset);
}

at::Tensor FlatParameters::in_shape(size_t parameter, const at::Tensor& elements) const {
  const at::Tensor& slot = slots_[parameter];
  return elements.as_strided(slot.sizes(), slot.strides(), elements.storage_offset());
}

at::Tensor FlatParameters::shard_of(const at::Tensor& padded, size_t bucket, int rank) const {
  return padded.narrow(0, plan_.shard_begin(bucket, rank), plan_.shard_elements(bucket, rank));
}

/// Uses an all_gather, or a broadcast of each shard if shards differ in length.
void FlatParameters::gather(size_t bucket,
                            std::vector<c10::intrusive_ptr<c10d::Work>>& works) const {
  if (plan_.world_size == 1) return;
  const c10::NoGradGuard no_grad;
  const at::Tensor all = buckets_.padded(bucket);
  if (plan_.partition == Partition::kElements) {
    c10d::AllgatherOptions options;
    options.asyncOp = true;
    works.push_back(all_gather_single(*group_, all, shard_of(all, bucket, rank_), options));
    return;
  }
  for (int owner = 0; owner < plan_.world_size; ++owner) {
    if (plan_.shard_elements(bucket, owner) == 0) continue;
    c10d::BroadcastOptions options;
    options.rootRank = owner;
    options.asyncOp = true;
    std::vector<at::Tensor> shard{shard_of(all, bucket, owner)};
    works.push_back(group_->broadcast(shard, options));
  }
}

}  // namespace farandole
