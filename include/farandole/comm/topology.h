// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "farandole/comm/store.h"
#include "farandole/export.h"

namespace farandole::comm {

/// Who is where. Local ranks count the ranks of one host in rank order.
struct FARANDOLE_API Topology {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int local_cores =
      1;  ///< cores that the ranks of this host have together, within the cgroup's quota
  std::vector<int> host_of_rank;        ///< host index of each rank; hosts counted by first rank
  std::vector<std::string> host_names;  ///< by host index, for messages
  std::vector<int> pids;                ///< process id of each rank on its own host, for messages
  std::vector<std::string> processes;   ///< by rank: pid namespace and start time, which tell a
                                        ///< process from all others of its host with its pid

  int host_count() const { return static_cast<int>(host_names.size()); }
  /// "rank 2 (pid 4711 on node-a)"
  std::string describe(int peer) const;
};

/// Exchanges host identities through `store` and derives the topology. Collective.
/// `group` names the group in messages; `host_id` overrides the kernel's boot id where not empty.
/// Throws TimeoutError naming the ranks that did not come.
FARANDOLE_API Topology discover_topology(Store& store, const std::string& group, int rank,
                                         int world_size, const std::string& host_id,
                                         std::chrono::milliseconds timeout);

}  // namespace farandole::comm
