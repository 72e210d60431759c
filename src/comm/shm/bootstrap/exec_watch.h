// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "farandole/comm/topology.h"

namespace farandole::comm::shm {

/// Tells which peers run another program now (exec): such a process lives on under its pid, but no
/// longer maps the group's memory. Looks into /proc/<pid>/maps, so only at ranks of this pid
/// namespace and user; for others the answer is no.
///
/// Threads: const and safe from any thread.
class ExecWatch {
 public:
  /// `shared` lies in the group's memory.
  ExecWatch(const Topology& topology, const void* shared);

  /// May have looked half a second ago: a look takes 0.1 ms and the peer's lock on its mappings.
  bool has_exec_ed(int rank) const;

 private:
  using Clock = std::chrono::steady_clock;

  const std::string& segment() const;

  std::vector<int> pids_;  ///< by rank; 0: not seen from here
  const void* shared_;
  mutable std::once_flag once_;
  mutable std::string segment_;  ///< how maps name the group's memory; written once
  std::unique_ptr<std::atomic<Clock::rep>[]> next_looks_;  ///< by rank
};

}  // namespace farandole::comm::shm
