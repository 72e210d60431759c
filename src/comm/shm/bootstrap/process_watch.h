// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "comm/shm/system/descriptor.h"

namespace farandole::comm::shm {

/// A handle on a process of this pid namespace that tells, also in other namespaces, when it has
/// ended. Invalid (see errno) where there is no such process or no pidfd.
Descriptor open_pidfd(int pid);

/// Watches one process of this host. The groups of this process share the watch on a process, so
/// that descriptors do not grow with the number of groups.
///
/// Threads: const and safe from any thread.
class ProcessWatch {
 public:
  /// A process of this pid namespace; `identity` tells it from others with its pid, see
  /// Topology::processes.
  static std::shared_ptr<const ProcessWatch> of(int pid, const std::string& identity);
  /// A process of any pid namespace, by a pidfd that it handed out.
  static std::shared_ptr<const ProcessWatch> of(int pid, const std::string& identity,
                                                Descriptor pidfd);
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  bool has_ended() const;
  /// How it ended where the kernel still tells: "was killed by signal 9 (Killed)", "exited with
  /// code 1", else "ended".
  std::string how_it_ended() const;
  /// Its status as of wait(), where the kernel still tells it.
  std::optional<int> wait_status() const;

 private:
  ProcessWatch(int pid, std::string identity, Descriptor pidfd, bool had_ended)
      : pid_(pid),
        identity_(std::move(identity)),
        pidfd_(std::move(pidfd)),
        had_ended_(had_ended) {}

  int pid_;
  std::string identity_;
  Descriptor pidfd_;  ///< invalid: watched through /proc
  bool had_ended_;    ///< before the watch began
};

}  // namespace farandole::comm::shm
