// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/shm/bell.h"
#include "comm/shm/lockstep.h"
#include "farandole/comm/communicator.h"

namespace farandole::comm::shm {

/// Signals through counters in symmetric memory.
///
/// Layout. The part of rank r in the allocation is a Bell, at which r sleeps (bell.h), and one
/// counter per rank: how many signals that rank has sent to r. Only the sender writes it (its
/// threads with atomic additions), and it never falls. How many r has taken is known to r alone.
///
/// Protocol. signal: add 1 to the counter and ring the bell. wait: take one if the counter is ahead
/// of what was taken; spin for a moment, then sleep at the bell, looking at the counter.
///
/// Memory order. The addition is a release of all that the sender's thread did before, and the look
/// that finds it an acquire; both are seq_cst, as the bell demands.
///
/// A sleeper looks after its peer every 50 ms, and once more at the counter before it calls the
/// peer gone: who signalled and exited is no failure.
///
/// Threads: any. Fork: in a child every call throws.
class SharedSignals final : public Signals {
 public:
  struct Options {
    std::string group;
    std::chrono::microseconds spin;
    std::function<std::chrono::milliseconds()> timeout;  ///< of waits that have none
  };
  /// Bytes that each rank's part needs.
  static size_t part_bytes(int world_size);

  /// `memory` is zeroed and of part_bytes(). `lockstep` tells who is gone and must live while this
  /// is used.
  SharedSignals(std::shared_ptr<SymmetricMemory> memory, const Topology& topology,
                Lockstep& lockstep, Options options);

  void signal(int peer) override;
  void wait(int peer, const CollectiveOptions& options) override;

 private:
  struct alignas(kNoSharing) Counter {
    std::atomic<uint64_t> sent;
  };

  Bell& bell(int rank) const;
  Counter& counter(int rank, int source) const;
  bool take(int peer);
  bool spin(int peer);
  bool sleep(int peer, std::chrono::microseconds limit);
  void look_for_failure(int peer);
  [[noreturn]] void fail_late(int peer, std::chrono::milliseconds timeout);

  std::shared_ptr<SymmetricMemory> memory_;
  Topology topology_;
  Lockstep& lockstep_;
  Options options_;
  std::vector<std::atomic<uint64_t>> taken_;  ///< by source
};

}  // namespace farandole::comm::shm
