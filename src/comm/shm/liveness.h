// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "comm/shm/descriptor.h"

namespace farandole::comm::shm {

/// How often a waiting rank looks after its peers' processes.
constexpr std::chrono::milliseconds kLivenessInterval{50};

/// A handle on this process that says when it has ended, also to other pid namespaces; invalid
/// where the kernel has no pidfd.
Descriptor own_pidfd();

/// Tells which peers have ended. It asks the kernel about processes and so never mistakes a socket
/// that a forked child holds open for a living rank, nor a zombie for one.
///
/// Threads: const and safe from any thread.
class Liveness {
 public:
  /// One pidfd and pid per rank. Ranks without a pidfd are watched through /proc.
  Liveness(std::vector<Descriptor> pidfds, std::vector<int> pids);

  /// Whether the process of `rank` has ended. Threads of this process count as alive.
  bool is_dead(int rank) const;
  /// How it ended where the kernel still tells: "killed by signal 9 (Killed)", "exited with code
  /// 1", else "ended".
  std::string cause_of_death(int rank) const;

 private:
  std::vector<Descriptor> pidfds_;
  std::vector<int> pids_;
  std::vector<std::string> start_times_;  ///< field 22 of /proc/pid/stat; empty with a pidfd
};

}  // namespace farandole::comm::shm
