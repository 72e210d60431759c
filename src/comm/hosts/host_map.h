// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "farandole/comm/topology.h"

namespace farandole::comm::hosts {

/// Which ranks are on which host, and who talks to whom.
///
/// Bytes for rank j of host B that come from host A are sent by rank (j mod ranks of A) of A: so
/// each rank receives from one rank of every other host, and hosts may have different numbers of
/// ranks. Ranks within a host are counted in rank order.
class HostMap {
 public:
  explicit HostMap(const Topology& topology) : ranks_(static_cast<size_t>(topology.host_count())) {
    for (int rank = 0; rank < topology.world_size; ++rank) {
      auto& of_host = ranks_[static_cast<size_t>(topology.host_of_rank[static_cast<size_t>(rank)])];
      host_of_.push_back(topology.host_of_rank[static_cast<size_t>(rank)]);
      local_of_.push_back(static_cast<int>(of_host.size()));
      of_host.push_back(rank);
    }
  }

  int count() const { return static_cast<int>(ranks_.size()); }
  int size_of(int host) const { return static_cast<int>(ranks_[static_cast<size_t>(host)].size()); }
  int host_of(int rank) const { return host_of_[static_cast<size_t>(rank)]; }
  int local_of(int rank) const { return local_of_[static_cast<size_t>(rank)]; }
  int rank_of(int host, int local) const {
    return ranks_[static_cast<size_t>(host)][static_cast<size_t>(local)];
  }
  const std::vector<int>& ranks_of(int host) const { return ranks_[static_cast<size_t>(host)]; }

  /// The rank of `host` that sends to `rank`, which is on another host.
  int sender_to(int rank, int host) const { return rank_of(host, local_of(rank) % size_of(host)); }
  /// Whether `from` sends to `to`.
  bool sends(int from, int to) const {
    return host_of(from) != host_of(to) && sender_to(to, host_of(from)) == from;
  }
  /// The ranks of other hosts that `rank` sends to or receives from, ascending.
  std::vector<int> peers_of(int rank) const {
    std::vector<int> peers;
    for (int other = 0; other < static_cast<int>(host_of_.size()); ++other) {
      if (sends(rank, other) || sends(other, rank)) peers.push_back(other);
    }
    return peers;
  }
  /// Ranks that every host has at least: so many stripes of a tensor travel side by side.
  int stripes() const {
    int fewest = size_of(0);
    for (int host = 1; host < count(); ++host) {
      if (size_of(host) < fewest) fewest = size_of(host);
    }
    return fewest;
  }

 private:
  std::vector<std::vector<int>> ranks_;  ///< by host
  std::vector<int> host_of_;             ///< by rank
  std::vector<int> local_of_;            ///< by rank
};

/// Processes of other hosts are not seen from here, whatever their pids.
inline Topology with_own_processes(Topology topology, const HostMap& map) {
  for (int rank = 0; rank < topology.world_size; ++rank) {
    if (map.host_of(rank) == map.host_of(topology.rank)) continue;
    topology.processes[static_cast<size_t>(rank)].clear();
  }
  return topology;
}

}  // namespace farandole::comm::hosts
