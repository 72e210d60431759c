// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "comm/shm/bootstrap/liveness.h"
#include "comm/shm/system/await.h"
#include "farandole/comm/store.h"
#include "farandole/comm/topology.h"
#include "farandole/export.h"

namespace farandole::comm::shm {

/// Communication of the ranks of a host through the store, after the roll call and until they share
/// memory. A rank that fails publishes the reason under one key. Waiting ranks check this key and
/// the processes of the others, so all ranks notice a failure or a death quickly.
///
/// Rank 0 waits for all other ranks, and they wait for rank 0 and for those whose part they need: a
/// rank may have finished the bootstrap, done its work and exited while a slow one still waits for
/// rank 0's last value.
///
/// Threads: one call at a time.
class FARANDOLE_API Bootstrap {
 public:
  /// `store`, `topology` and `liveness` outlive this. `timeout` runs from here.
  Bootstrap(Store& store, std::string group, const Topology& topology, const Liveness& liveness,
            std::chrono::milliseconds timeout);

  /// Publishes a value.
  void set(const std::string& name, const std::string& value);
  /// Waits for a value that `from` publishes.
  std::string get(const std::string& name, int from = 0);
  /// The value, if it is published.
  std::optional<std::string> look(const std::string& name);

  /// See Await. Throws PeerFailure if a process ended, AbortedError if a peer reported a failure,
  /// TimeoutError with `peers`.
  void await(const std::vector<int>& peers, const Ready& ready);

  /// Throws what await() throws if a rank has given up or its process has ended.
  void check();

  /// Publishes that this rank gives up, unless another rank gave up first. Call it before this
  /// rank's sockets close.
  void tell(const std::exception& error) noexcept;

  const std::string& group() const { return group_; }
  std::string key(const std::string& name) const;

 private:
  int find_dead(const std::vector<int>& peers) const;
  bool look_for_failures(const std::vector<int>& peers, const Ready& ready);
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
