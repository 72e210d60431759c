// SPDX-License-Identifier: Apache-2.0
#include "farandole/comm/topology.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "comm/cores.h"
#include "comm/process_stat.h"
#include "comm/roll_call.h"

namespace farandole::comm {
namespace {

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id.empty() ? "unknown-boot" : id;
}

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

/// What ranks have in common that may share memory. It is not enough to be sure (clones of a
/// virtual machine have one boot id), so hosts::find_islands() lets ranks prove it.
std::string host_id() {
  char network[64] = {};
  if (::readlink("/proc/self/ns/net", network, sizeof(network) - 1) < 0) network[0] = '\0';
  return boot_id() + " " + network + " " + std::to_string(::geteuid());
}

}  // namespace

int Topology::rank_in_group(int peer) const {
  const auto index = static_cast<size_t>(peer);
  return index < ranks_in_group.size() ? ranks_in_group[index] : peer;
}

int Topology::rank_here(int in_group) const {
  if (ranks_in_group.empty()) return in_group < world_size ? in_group : -1;
  const auto found = std::find(ranks_in_group.begin(), ranks_in_group.end(), in_group);
  return found == ranks_in_group.end() ? -1 : static_cast<int>(found - ranks_in_group.begin());
}

std::string Topology::describe_in_group(int in_group) const {
  const auto index = static_cast<size_t>(in_group);
  if (index < described_in_group.size()) return described_in_group[index];
  const int here = rank_here(in_group);
  return here < 0 ? "rank " + std::to_string(in_group) : describe(here);
}

std::string Topology::name_of(int peer) const {
  return "rank " + std::to_string(rank_in_group(peer));
}

std::string Topology::own_position() const {
  return name_of(rank) + " of " + std::to_string(group_size > 0 ? group_size : world_size);
}

Fault Topology::fault_of(std::vector<int> peers, std::string collective) const {
  for (int& each : peers) each = rank_in_group(each);
  return {std::move(peers), std::move(collective)};
}

std::string Topology::describe(int peer) const {
  const auto index = static_cast<size_t>(peer);
  std::string text = name_of(peer);
  if (index >= pids.size() || index >= host_of_rank.size()) return text;
  return text + " (pid " + std::to_string(pids[index]) + " on " +
         host_names[static_cast<size_t>(host_of_rank[index])] + ")";
}

Topology discover_topology(Store& store, const MeetingOptions& options) {
  Presence own;
  own.build = options.build;
  own.attempt = options.attempt;
  own.host_id = options.host_id.empty() ? host_id() : options.host_id;
  own.host_name = host_name();
  own.cores = allowed_cores();
  own.process = identity_of(read_process_stat("self"));
  own.pid = static_cast<int>(::getpid());
  own.world_size = options.world_size;
  RollCall call(store, options.group, options.rank, own, options.timeout, options.while_waiting);
  const Roll roll = call.run();
  Topology topology;
  topology.rank = options.rank;
  topology.world_size = options.world_size;
  topology.session = roll.session;
  std::vector<std::string> host_ids;
  for (const Presence& peer : roll.ranks) {
    const auto known = std::find(host_ids.begin(), host_ids.end(), peer.host_id);
    topology.host_of_rank.push_back(static_cast<int>(known - host_ids.begin()));
    if (known == host_ids.end()) {
      host_ids.push_back(peer.host_id);
      topology.host_names.push_back(peer.host_name);
    }
    topology.pids.push_back(peer.pid);
    topology.processes.push_back(peer.process);
    topology.cores.push_back(peer.cores);
  }
  count_local_ranks(topology);
  return topology;
}

void count_local_ranks(Topology& topology) {
  const auto host_of = [&](int rank) { return topology.host_of_rank[static_cast<size_t>(rank)]; };
  std::vector<std::string> cores;
  topology.local_world_size = 0;
  for (int rank = 0; rank < topology.world_size; ++rank) {
    if (host_of(rank) != host_of(topology.rank)) continue;
    if (rank == topology.rank) topology.local_rank = topology.local_world_size;
    ++topology.local_world_size;
    cores.push_back(topology.cores[static_cast<size_t>(rank)]);
  }
  topology.local_cores = std::min(count_cores(cores), cgroup_core_quota());
}

}  // namespace farandole::comm
