// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "farandole/comm/store.h"
#include "farandole/error.h"
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
  std::vector<std::string> cores;       ///< by rank: those it may use, as in "0-3,8"
  std::string session;                  ///< random; the same on all ranks, of this group alone
  /// If the ranks are a part of a larger group: their ranks in it, by which messages and errors
  /// name them. Empty: they are the whole group.
  std::vector<int> ranks_in_group;
  int group_size = 0;                           ///< ranks of the larger group; 0: world_size
  std::vector<std::string> described_in_group;  ///< by rank in it: describe(); may be empty

  int host_count() const { return static_cast<int>(host_names.size()); }
  /// The number that messages give to `peer`.
  int rank_in_group(int peer) const;
  /// The other way round; -1: that rank of the larger group is not among these.
  int rank_here(int in_group) const;
  /// "rank 2"
  std::string name_of(int peer) const;
  /// "rank 2 of 8": this rank.
  std::string own_position() const;
  /// "rank 2 (pid 4711 on node-a)"
  std::string describe(int peer) const;
  /// As describe(), for any rank of the larger group; "rank 2" where no more is known.
  std::string describe_in_group(int in_group) const;
  /// What an error about `peers` tells programs.
  Fault fault_of(std::vector<int> peers, std::string collective = {}) const;
};

/// Whether a rank of a group that forms has not come yet. It asks the store.
using IsAbsent = std::function<bool(int rank)>;
/// Called now and then while a group forms; what it throws ends that.
using WhileForming = std::function<void(const IsAbsent& is_absent)>;

/// Who meets, and for how long.
struct MeetingOptions {
  std::string group;  ///< for messages and keys
  int rank = 0;
  int world_size = 1;
  std::string host_id;                   ///< see Config::host_id
  std::string build;                     ///< versions and sizes in which ranks must be the same
  std::string attempt;                   ///< the launcher's count of restarts; may be empty
  std::chrono::milliseconds timeout{0};  ///< for the others to come
  WhileForming while_waiting;            ///< may be empty
};

/// Meets the ranks that are there now, whatever earlier ones have left in `store`, and derives the
/// topology, in which ranks with one host id are on one host. Collective. Throws TimeoutError
/// naming the ranks that did not arrive, PeerFailure where one died, MismatchError where one has
/// another build or world size, AbortedError where rank 0 gave up.
FARANDOLE_API Topology discover_topology(Store& store, const MeetingOptions& options);

/// Derives local_rank, local_world_size and local_cores from the other members.
FARANDOLE_API void count_local_ranks(Topology& topology);

}  // namespace farandole::comm
