// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/shm/bootstrap/process_watch.h"
#include "comm/shm/system/descriptor.h"
#include "farandole/comm/topology.h"
#include "farandole/export.h"

namespace farandole::comm::shm {

/// How often a waiting rank checks the processes of its peers.
constexpr std::chrono::milliseconds kLivenessInterval{50};
/// Longer timeouts would not fit into the clock's nanoseconds.
constexpr std::chrono::milliseconds kMostTimeout = std::chrono::hours(24 * 365);

/// Finds out which peers have ended. It asks the kernel about processes, so it takes neither a
/// socket that a forked child holds open nor a zombie for a living rank. Ranks that are threads of
/// one process live and end with it.
///
/// Threads: const and safe from any thread; adopt() before others use it.
class FARANDOLE_API Liveness {
 public:
  /// Watches the ranks of this process's pid namespace. Ranks of other namespaces count as alive
  /// until adopt(). A process that is not there when the watch begins counts as alive for `doubt`:
  /// it may be one of another machine with the same ids, such as a clone.
  explicit Liveness(const Topology& topology,
                    std::chrono::milliseconds doubt = std::chrono::milliseconds(0));

  /// Whether all ranks are in one pid namespace; the same on all ranks.
  bool sees_all() const;
  /// Whether the end of `rank` can be detected.
  bool sees(int rank) const { return watch(rank) != nullptr; }
  /// Watches the ranks of other pid namespaces by their pidfds.
  void adopt(std::vector<Descriptor> pidfds);

  /// Whether the process of `rank` has ended.
  bool is_dead(int rank) const;
  /// How: see ProcessWatch::how_it_ended().
  std::string cause_of_death(int rank) const;
  /// Whether it ended with status 0; nullopt: that is unknown.
  std::optional<bool> has_succeeded(int rank) const;

 private:
  const ProcessWatch* watch(int rank) const { return watches_[static_cast<size_t>(rank)].get(); }

  std::vector<int> pids_;
  std::vector<std::string> processes_;
  std::vector<std::shared_ptr<const ProcessWatch>> watches_;           ///< by rank; null: not yet
  std::vector<std::chrono::steady_clock::time_point> in_doubt_until_;  ///< by rank
};

}  // namespace farandole::comm::shm
