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
#include <string>
#include <thread>
#include <vector>

#include "comm/shm/channel.h"
#include "comm/shm/lockstep.h"
#include "comm/shm/remote_channels.h"
#include "farandole/comm/transfer.h"

namespace farandole::comm::shm {

/// Sends and receives of one rank: any number in flight, matched by source and tag in the order in
/// which they were posted, as MPI does (MPI 4.1, 3.5).
///
/// One Channel leads from each rank to each rank. A message is an envelope (tag, bytes) and its
/// bytes, streamed through the channel piece by piece. A message that no receive waits for stays
/// there, unless that holds up a receive of a later one or a pending send: then this process keeps
/// it.
///
/// Progress. Whoever waits for a transfer moves the bytes of all of them (advance(), under mutex_);
/// it spins for a while, then sleeps at the rank's doorbell. For transfers that nobody waits for
/// there is one helper thread: it looks every millisecond while transfers come and go, sleeps at
/// the doorbell once some stay pending without a waiter, and without end when there is nothing to
/// do for long. So a transfer that is waited for at once costs no system call.
///
/// Doorbell. `wanted` says who of a rank is to be woken. A rank that moved bytes looks at the
/// peer's `wanted`. Whoever goes to sleep reads the count of rings, stores `wanted`, advances once
/// more and only then sleeps until that count changes. Counters of channels and `wanted` are
/// seq_cst: of a rank that moves bytes and one that falls asleep at least one sees the other.
///
/// Ranks of other hosts are peers behind those of this host, through RemoteChannels. A send to one
/// of them is done when its bytes have left the channel, so that it does not depend on this
/// process.
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

  /// Adds peers of other hosts, before any transfer. `remote` outlives this; `all` is the topology
  /// with these peers at the end of its lists by rank.
  void add_remote(RemoteChannels& remote, const Topology& all);
  /// Bytes have moved in a remote channel.
  void wake();

  static constexpr int kAnySource = -1;
  /// One side of a message.
  struct Request {
    std::byte* data;
    size_t bytes;
    int peer;  ///< ranks of this host come first; for a receive possibly kAnySource
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
  using Lock = std::unique_lock<std::mutex>;  ///< of mutex_
  /// What operations share with their owner, and keep when it has ended.
  struct Life {
    std::mutex mutex;
    PointToPoint* owner;  ///< guarded by mutex; null: it has ended
  };

  void begin();
  bool advance();
  bool advance_sends(int destination);
  bool advance_receives(int source);
  bool take_envelope(Incoming& message);
  bool must_keep(const Incoming& message) const;
  bool keep(Incoming& message);
  void attach(Incoming& message, const std::shared_ptr<Operation>& receive);
  void deliver(Incoming& message);
  bool matches(const Operation& receive, const Incoming& message) const;
  void finish(Operation& operation, std::exception_ptr error);
  void look(Lock& lock);
  void wait(Operation& operation, std::chrono::steady_clock::time_point begin,
            std::chrono::milliseconds timeout, Lock& lock);
  void refuse_endless(Operation& operation);
  void spin(const Operation& operation, std::chrono::steady_clock::time_point deadline, Lock& lock);
  bool sleep(Doorbell::Who who, const Operation* operation, std::chrono::microseconds limit,
             Lock& lock);
  void say_who_is_wanted();
  void look_for_failures();
  void fail_late(const Operation& operation, std::chrono::milliseconds timeout);
  void fail_interrupted(const Operation& operation);
  void give_up(const std::string& why, std::exception_ptr error, int lost_rank = -1);
  bool is_over() const { return failure_ != nullptr || error_ != nullptr; }
  void fail_all(const std::exception_ptr& error);
  void tell_group(Lock& lock);
  static void ring(Doorbell& doorbell, Doorbell::Who who);
  void ring_wanted(int rank);
  static void ring_if_wanted(Doorbell& doorbell);
  void start_helper();
  void ask_helper();
  void help();
  int peers() const { return static_cast<int>(sends_.size()); }
  bool is_remote(int peer) const { return peer >= topology_.world_size; }
  int remote_of(int peer) const { return peer - topology_.world_size; }
  size_t capacity_of(int peer) const { return is_remote(peer) ? remote_->capacity() : capacity_; }
  bool is_gone(int peer) const;
  Channel* channel(int source, int destination) const;

  Topology topology_;  ///< world_size: the ranks of this host
  RemoteChannels* remote_ = nullptr;
  Lockstep& lockstep_;
  std::chrono::microseconds spin_;
  size_t capacity_;
  Doorbell* doorbells_;
  Doorbell* own_doorbell_;  ///< for threads that do not hold mutex_
  std::byte* channels_;

  const std::shared_ptr<Life> life_ = std::make_shared<Life>();
  std::mutex& mutex_ = life_->mutex;  // guards all below
  std::unique_ptr<std::condition_variable> helper_wanted_ =
      std::make_unique<std::condition_variable>();
  std::vector<std::deque<std::shared_ptr<Operation>>> sends_;  ///< by destination, in order
  std::list<std::shared_ptr<Operation>> receives_;             ///< without a message yet, in order
  std::list<Incoming> incoming_;  ///< messages begun or not yet asked for, in order
  std::vector<std::list<Incoming>::iterator> current_;  ///< by source: the message in the channel
  size_t pending_ = 0;                                  ///< operations that are not done
  uint64_t posts_ = 0;                                  ///< operations ever
  uint64_t moves_ = 0;                                  ///< times that advance() moved something
  int waiters_ = 0;                                     ///< threads in wait()
  int spinning_ = 0;                                    ///< those of them that spin
  int sleeping_ = 0;                                    ///< those of them at the doorbell
  bool helper_sleeps_ = false;                          ///< at the doorbell
  bool helper_idles_ = false;                           ///< without end
  bool helper_asked_ = false;                 ///< somebody wants to be told without waiting
  Doorbell::Who wanted_ = Doorbell::kNobody;  ///< what the own doorbell says
  std::chrono::steady_clock::time_point next_look_{};
  bool closing_ = false;
  std::exception_ptr failure_;
  std::string gave_up_;       ///< why, until the group is told
  int lost_rank_ = -1;        ///< that gave_up_ is about
  std::exception_ptr error_;  ///< what this rank gave up for
  std::thread helper_;
};

}  // namespace farandole::comm::shm
