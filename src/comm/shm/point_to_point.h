// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/shm/channel.h"
#include "comm/shm/lockstep.h"
#include "farandole/comm/transfer.h"

namespace farandole::comm::shm {

/// Sends and receives of one rank: any number in flight, matched by source and tag in the order in
/// which they were posted, as MPI does (MPI 4.1, 3.5).
///
/// One Channel leads from each rank to each rank. A message is an envelope (tag, bytes) and its
/// bytes, streamed through the channel piece by piece. Messages that no receive waits for yet are
/// taken into memory of this process, so that a later message can pass.
///
/// Progress. Whoever waits for a transfer moves the bytes of all of them (advance(), under mutex_).
/// If nobody waits while something is pending, one helper thread does; it sleeps at the rank's
/// doorbell and never spins. After moving bytes a rank rings the doorbell of the peer if somebody
/// sleeps there: counter stores, `sleepers` and looks at the counters are seq_cst, so that of a
/// writer and a rank that falls asleep at least one sees the other.
///
/// Threads: any.
class PointToPoint {
 public:
  /// Bytes of shared memory for a world, and the capacity of one of its channels.
  static size_t shared_bytes(int world_size);
  static size_t capacity_for(int world_size);

  /// `shared` is zeroed memory that all ranks map; `lockstep` tells who is gone. Both outlive this.
  PointToPoint(std::byte* shared, const Topology& topology, Lockstep& lockstep,
               std::chrono::microseconds spin);
  /// Ends the helper. Transfers that are not done fail.
  ~PointToPoint();

  static constexpr int kAnySource = -1;
  /// One side of a message.
  struct Request {
    std::byte* data;
    size_t bytes;
    int peer;  ///< for a receive possibly kAnySource
    uint64_t tag;
    std::chrono::milliseconds timeout;
  };
  std::shared_ptr<Transfer> send(const Request& request);
  std::shared_ptr<Transfer> receive(const Request& request);

 private:
  class Operation;
  struct Envelope;
  struct Incoming;
  friend class Operation;

  bool advance();
  bool advance_sends(int destination);
  bool advance_receives(int source);
  bool take_envelope(int source);
  void deliver(Incoming& message);
  bool matches(const Operation& receive, const Incoming& message) const;
  void finish(Operation& operation, std::exception_ptr error);
  void wait(Operation& operation, std::chrono::milliseconds timeout);
  bool sleep_at_doorbell(const Operation* operation, std::chrono::microseconds limit);
  void look_for_failures();
  void fail_all(std::exception_ptr error);
  void ring(int rank);
  void start_helper();
  void wake_helper();
  void help();
  Channel& channel(int source, int destination) const;

  Topology topology_;
  Lockstep& lockstep_;
  std::chrono::microseconds spin_;
  size_t capacity_;
  Doorbell* doorbells_;
  std::byte* channels_;

  std::mutex mutex_;  // guards all below
  std::unique_ptr<std::condition_variable> helper_wanted_ =
      std::make_unique<std::condition_variable>();
  std::vector<std::deque<std::shared_ptr<Operation>>> sends_;  ///< by destination, in order
  std::list<std::shared_ptr<Operation>> receives_;             ///< without a message yet, in order
  std::list<Incoming> incoming_;  ///< messages begun or not yet asked for, in order
  std::vector<std::list<Incoming>::iterator> current_;  ///< by source: the message in the channel
  size_t pending_ = 0;                                  ///< operations that are not done
  int waiters_ = 0;
  bool closing_ = false;
  std::exception_ptr failure_;
  std::thread helper_;
};

}  // namespace farandole::comm::shm
