// SPDX-License-Identifier: Apache-2.0
#include "optim/shards/shard_ranks.h"

#include <ATen/Version.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "ddp/fingerprint_check.h"
#include "farandole/error.h"
#include "optim/shards/check_parameters.h"

namespace farandole {

bool ShardRanks::are_of_replica() const {
  return replica() != nullptr && replica()->shared_group() == everyone();
}

void ShardRanks::find_replica(const std::vector<at::Tensor>& parameters) {
  link_ = Replica::of(parameters.front());
  for (const at::Tensor& parameter : parameters) {
    if (Replica::of(parameter) != link_) link_.reset();
    if (!link_) return;
  }
}

void ShardRanks::choose_group(const farandole::Group& group) {
  Division chosen;
  chosen.everyone = chosen.group = everyone_of(group);
  chosen.sharers.resize(static_cast<size_t>(chosen.everyone->world_size()));
  std::iota(chosen.sharers.begin(), chosen.sharers.end(), 0);
  if (shard_over_ == ShardOver::kHost) {
    check_hosts(*chosen.everyone);
    const std::vector<int>& hosts = chosen.everyone->host_of_rank();
    const int own = hosts[static_cast<size_t>(chosen.everyone->rank())];
    const auto is_elsewhere = [&](int rank) { return hosts[static_cast<size_t>(rank)] != own; };
    auto& sharers = chosen.sharers;
    sharers.erase(std::remove_if(sharers.begin(), sharers.end(), is_elsewhere), sharers.end());
    const bool has_other_hosts = sharers.size() < hosts.size();
    if (has_other_hosts) chosen.group = ReplicaGroup::of_host(*chosen.everyone, "zero_host");
  }
  division_ = std::move(chosen);
}

std::shared_ptr<ReplicaGroup> ShardRanks::everyone_of(const farandole::Group& group) const {
  if (replica() != nullptr && (!group || group.get() == replica()->group().of_program().get())) {
    return replica()->shared_group();
  }
  const bool stays = !group && everyone() && replica() == nullptr;  // a rebuild for the same ranks
  return stays ? everyone() : std::make_shared<ReplicaGroup>(group, "zero");
}

/// Each host computes all parameters, so all must come to the same bits: from shards of the same
/// sizes, with the same instructions.
void ShardRanks::check_hosts(const ReplicaGroup& everyone) const {
  if (mode_ == GradientMode::kShard) {
    throw InvalidArgument(
        "shard-over-host-gradients", "shard_over=\"host\" was called with gradients=\"shard\".",
        "with gradients=\"shard\" the optimizer averages over the ranks that share shards, but "
        "those of a host have only their own gradients.",
        "leave gradients out: the DistributedDataParallel averages over all hosts.");
  }
  const std::vector<int>& hosts = everyone.host_of_rank();
  if (hosts.empty()) {
    throw NotSupported("shard-over-host-backend",
                       "shard_over=\"host\" got a process group of another backend.",
                       "only groups of the backend farandole know which ranks share a host.",
                       "use such a group, or pass as process_group a group of each host's ranks.");
  }
  const int own = hosts[static_cast<size_t>(everyone.rank())];
  const std::vector<std::string> found =
      everyone.all_gather(std::to_string(std::count(hosts.begin(), hosts.end(), own)) +
                          " ranks and a CPU with " + at::get_cpu_capability());
  const auto other = std::find_if(found.begin(), found.end(),
                                  [&](const std::string& each) { return each != found[0]; });
  if (other == found.end()) return;
  throw InvalidArgument(
      "hosts-differ",
      "shard_over=\"host\" got hosts that differ: that of rank 0 has " + found[0] +
          ", that of rank " + std::to_string(other - found.begin()) + " has " + *other + ".",
      "each host computes all new parameters, and sums over other shards or with other "
      "instructions have other bits, so the replicas would drift apart.",
      "start as many ranks on each host, set ATEN_CPU_CAPABILITY to what all CPUs have, or leave "
      "shard_over out.");
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
  if (const auto rank = find_rank_that_differs(*everyone(), layout.fingerprint(with_values))) {
    throw_that_parameters_differ(static_cast<int>(*rank), *everyone());
  }
}

std::vector<double> ShardRanks::all_gather(const std::vector<double>& numbers) const {
  return everyone()->all_gather(numbers);
}

void ShardRanks::begin_change(const farandole::Group& group, const ShardLayout& layout) {
  if (!previous_) previous_ = division_;  // it is set if a change was not finished
  const auto& parts = layout.parts();
  const int old_world = parts.empty() ? world_size() : parts.front().flat->plan().world_size;
  const int old_rank = parts.empty() ? rank() : parts.front().flat->rank();
  if (replica() == nullptr) find_replica(layout.tensors());
  choose_group(group);
  const std::vector<uint64_t> old_ranks =
      this->group()->all_gather(static_cast<uint64_t>(old_rank));
  owners_.assign(static_cast<size_t>(old_world), -1);
  for (size_t owner = old_ranks.size(); owner-- > 0;) {
    if (old_ranks[owner] < owners_.size()) owners_[old_ranks[owner]] = static_cast<int>(owner);
  }
  const int lost = first_lost_shard(layout);
  if (lost < 0) return;
  undo_change();
  throw InvalidArgument(
      "state-lost",
      "rebuild() cannot find the optimizer state of rank " + std::to_string(lost) + " of " +
          std::to_string(old_world) + ".",
      "each rank has only the state of its own shards, and that rank is not in the new group.",
      "make a new optimizer and load a checkpoint into it on all ranks; every rank still has all "
      "parameters.");
}

/// A shard with state that no rank has which shares shards with this one, or else with another; -1:
/// there is none.
int ShardRanks::first_lost_shard(const ShardLayout& layout) const {
  const bool has_state = std::any_of(layout.parameters().begin(), layout.parameters().end(),
                                     [](const auto& parameter) { return parameter.steps > 0; });
  const auto lost = std::find(owners_.begin(), owners_.end(), -1);
  const int own =
      lost == owners_.end() || !has_state ? -1 : static_cast<int>(lost - owners_.begin());
  if (group() == everyone()) return own;
  const std::vector<double> all = all_gather({static_cast<double>(own)});
  return own >= 0 ? own : static_cast<int>(*std::max_element(all.begin(), all.end()));
}

void ShardRanks::finish_change() noexcept {
  owners_.clear();
  previous_.reset();
}

void ShardRanks::undo_change() noexcept {
  owners_.clear();
  division_ = std::move(*previous_);
  previous_.reset();
}

}  // namespace farandole
