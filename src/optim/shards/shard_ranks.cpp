// SPDX-License-Identifier: Apache-2.0
#include "optim/shards/shard_ranks.h"

#include <algorithm>
#include <utility>

#include "farandole/error.h"
#include "optim/shards/check_parameters.h"

namespace farandole {

bool ShardRanks::are_of_replica() const {
  return replica() != nullptr && replica()->shared_group() == group_;
}

void ShardRanks::find_replica(const std::vector<at::Tensor>& parameters) {
  link_ = Replica::of(parameters.front());
  for (const at::Tensor& parameter : parameters) {
    if (Replica::of(parameter) != link_) link_.reset();
    if (!link_) return;
  }
}

void ShardRanks::choose_group(const farandole::Group& group) {
  if (replica() != nullptr && (!group || group.get() == replica()->group().of_program().get())) {
    group_ = replica()->shared_group();
  } else if (!group && group_ && replica() == nullptr) {
    return;  // a rebuild for the same ranks
  } else {
    group_ = std::make_shared<ReplicaGroup>(group, "zero");
  }
}

void ShardRanks::check_replica(const ShardLayout& layout) const {
  if (mode_ == GradientMode::kFull) return;
  const char* fix =
      "pass all parameters of one DistributedDataParallel and either its process group or none; or "
      "use gradients=\"full\".";
  if (replica() == nullptr) {
    throw InvalidArgument(
        "several-wrappers",
        "gradients=\"shard\" got parameters that do not all belong to one DistributedDataParallel.",
        "a DistributedDataParallel leaves the averaging of its gradients to the optimizer.", fix);
  }
  if (!are_of_replica()) {
    throw InvalidArgument(
        "wrapper-group",
        "gradients=\"shard\" got a different process group than the DistributedDataParallel.",
        "gradients are averaged over the ranks that computed them.", fix);
  }
  const auto& tensors = layout.tensors();
  for (const auto& [name, tensor] : replica()->parameters()) {
    const auto is_same = [&wanted = tensor](const at::Tensor& each) {
      return each.is_same(wanted);
    };
    if (!tensor.requires_grad() || std::any_of(tensors.begin(), tensors.end(), is_same)) continue;
    throw InvalidArgument("parameter-left-out",
                          "gradients=\"shard\" did not get parameter '" + name + "'.",
                          "its gradient would not be averaged.", fix);
  }
}

void ShardRanks::check_same_parameters(const ShardLayout& layout, bool with_values) const {
  const std::vector<uint64_t> hashes = group_->all_gather(layout.hash(with_values));
  for (size_t rank = 1; rank < hashes.size(); ++rank) {
    if (hashes[rank] != hashes[0]) throw_that_parameters_differ(static_cast<int>(rank), *group_);
  }
}

std::vector<double> ShardRanks::all_gather(const std::vector<double>& numbers) const {
  return group_->all_gather(numbers);
}

void ShardRanks::begin_change(const farandole::Group& group, const ShardLayout& layout) {
  if (!previous_group_) previous_group_ = group_;  // it is set if a change was not finished
  const auto& parts = layout.parts();
  const int old_world = parts.empty() ? world_size() : parts.front().flat->plan().world_size;
  const int old_rank = parts.empty() ? rank() : parts.front().flat->rank();
  if (replica() == nullptr) find_replica(layout.tensors());
  choose_group(group);
  const std::vector<uint64_t> old_ranks = group_->all_gather(static_cast<uint64_t>(old_rank));
  owners_.assign(static_cast<size_t>(old_world), -1);
  for (size_t owner = old_ranks.size(); owner-- > 0;) {
    if (old_ranks[owner] < owners_.size()) owners_[old_ranks[owner]] = static_cast<int>(owner);
  }
  const auto lost = std::find(owners_.begin(), owners_.end(), -1);
  const bool has_state = std::any_of(layout.parameters().begin(), layout.parameters().end(),
                                     [](const auto& parameter) { return parameter.steps > 0; });
  if (lost == owners_.end() || !has_state) return;
  const auto lost_rank = std::to_string(lost - owners_.begin());
  undo_change();
  throw InvalidArgument(
      "state-lost",
      "rebuild() cannot find the optimizer state of rank " + lost_rank + " of " +
          std::to_string(old_world) + ".",
      "each rank has only the state of its own shards, and that rank is not in the new group.",
      "make a new optimizer and load a checkpoint into it on all ranks; every rank still has all "
      "parameters.");
}

void ShardRanks::finish_change() noexcept {
  owners_.clear();
  previous_group_.reset();
}

void ShardRanks::undo_change() noexcept {
  owners_.clear();
  group_ = std::move(previous_group_);
}

}  // namespace farandole
