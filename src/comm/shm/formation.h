// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "comm/shm/await.h"
#include "comm/shm/liveness.h"
#include "farandole/comm/store.h"
#include "farandole/comm/topology.h"

namespace farandole::comm::shm {

/// What the ranks of a host, who have met, tell each other through the store until they share
/// memory, and their waits until then. A rank that fails says why under one key; who waits looks
/// there and after the processes, so that all ranks learn of a failure or death within moments.
///
/// Rank 0 waits for all others, and they for rank 0 alone: a rank may have formed the group, done
/// its work and ended while a slow one still waits for rank 0's last word.
///
/// Threads: one call at a time.
class Formation {
 public:
  /// `store`, `topology` and `liveness` outlive this. `timeout` runs from here.
  Formation(Store& store, std::string group, const Topology& topology, const Liveness& liveness,
            std::chrono::milliseconds timeout);

  /// Publishes a word of rank 0.
  void set(const std::string& name, const std::string& value);
  /// Waits for a word of rank 0.
  std::string get(const std::string& name);

  /// See Await. Throws PeerFailure where a process ended, AbortedError where a peer told that it
  /// failed, TimeoutError naming `peers`.
  void await(const std::vector<int>& peers, const Ready& ready);

  /// Tells the peers that this rank gives up, unless it does so because one of them told. Call it
  /// before this rank's sockets close.
  void tell(const std::exception& error) noexcept;

  const std::string& group() const { return group_; }
  std::string key(const std::string& name) const;

 private:
  int find_dead() const;
  bool look_for_failures(const Ready& ready);
  std::optional<std::string> look(const std::string& name);
  void explain_lost_store() const;
  [[noreturn]] void fail_dead(int rank) const;

  Store& store_;
  std::string group_;
  const Topology& topology_;
  const Liveness& liveness_;
  std::chrono::milliseconds timeout_;
  std::chrono::steady_clock::time_point deadline_;
  bool was_told_ = false;  ///< a peer gave up first
};

}  // namespace farandole::comm::shm
