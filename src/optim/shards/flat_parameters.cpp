// SPDX-License-Identifier: Apache-2.0
#include "optim/shards/flat_parameters.h"

#include <c10/core/GradMode.h>

#include <utility>

#include "ddp/stream_use.h"
#include "farandole/error.h"
#include "process_group/torch_compat.h"

namespace farandole {

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
      own_(parameters_.size()) {
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (const auto& slot : plan_.buckets.buckets[bucket].slots) {
      slots_[slot.parameter] = buckets_.slot_tensor(bucket, slot, parameters_[slot.parameter]);
    }
  }
  for (size_t i = 0; i < parameters_.size(); ++i) take_value(i);
}

bool FlatParameters::is_inside(size_t parameter) const {
  const at::Tensor& now = parameters_[parameter];
  const at::Tensor& slot = slots_[parameter];
  return own_[parameter].tensor().defined() && now.const_data_ptr() == own_[parameter].address() &&
         now.scalar_type() == slot.scalar_type() && now.sizes() == slot.sizes() &&
         now.strides() == slot.strides();
}

/// Into its slot, where the parameter moves unless the program sees its memory.
void FlatParameters::take_value(size_t parameter) {
  const c10::NoGradGuard no_grad;
  const bool stays = SlotTensor::is_seen_by_others(parameters_[parameter]);
  const at::Tensor before = parameters_[parameter].detach();
  SlotTensor& own = own_[parameter];
  if (own.is_held()) std::exchange(own, {}).release();
  slots_[parameter].copy_(before);
  keep_for_current_stream(before);
  if (stays) return;
  if (!own.is_in_place()) own = SlotTensor(slots_[parameter], buckets_.symmetric());
  parameters_[parameter].set_data(own.tensor());
}

void FlatParameters::take_values() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (is_inside(i)) continue;
    check_unchanged(i);
    take_value(i);
  }
}

bool FlatParameters::has_outside() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_inside(i)) return true;
  }
  return false;
}

void FlatParameters::publish_outside() const {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_inside(i)) parameters_[i].copy_(slots_[i]);
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
