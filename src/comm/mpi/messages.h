// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/mpi/group.h"
#include "comm/mpi/progress_thread.h"
#include "farandole/comm/transfer.h"

namespace farandole::comm::mpi {

/// Sends and receives of one rank: any number in flight, matched by source and tag in the order in
/// which they were posted.
///
/// A message is a head (tag, bytes, number) and its bytes, in MPI messages of their own. Heads are
/// matched here, because tags have 64 bits and a receive of another size must be an error that
/// leaves MPI usable. The number becomes the MPI tag of the bytes. Bytes that no receive waits for
/// stay with MPI or the sender, unless they are few, or this rank sends or receives itself: then
/// this process keeps them.
///
/// Whoever waits for a transfer moves all of them; for those that nobody waits for there is the
/// ProgressThread.
///
/// Threads: any.
class Messages final : public Progressing, public std::enable_shared_from_this<Messages> {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int kAnySource = -1;

  /// One side of a message.
  struct Request {
    std::byte* data;
    size_t bytes;
    int peer;  ///< for a receive possibly kAnySource
    uint64_t tag;
    std::chrono::milliseconds timeout;
  };

  /// `group` outlives this.
  Messages(Group& group, std::chrono::microseconds spin, int most_tag);
  ~Messages() override;
  /// Fails transfers that are not done.
  void close();

  std::shared_ptr<Transfer> send(const Request& request);
  std::shared_ptr<Transfer> receive(const Request& request);

  /// Of the ProgressThread.
  bool progress() override;

 private:
  struct Head;
  class Operation;
  struct Incoming;
  using Lock = std::unique_lock<std::mutex>;  ///< of mutex_
  using Requests = std::vector<MPI_Request>;

  void begin();
  bool advance();
  bool hear_heads();
  bool advance_sends();
  bool advance_incoming();
  bool may_keep(const Incoming& message) const;
  void start(Incoming& message, std::byte* to);
  void attach(Incoming& message, const std::shared_ptr<Operation>& receive);
  void deliver(Incoming& message);
  bool matches(const Operation& receive, const Incoming& message) const;
  bool are_done(Requests& requests);
  int payload_tag(uint64_t number) const;
  void finish(Operation& operation, const std::exception_ptr& error);
  void wait(Operation& operation, std::chrono::milliseconds timeout);
  void refuse_endless(Operation& operation);
  void look_for_failures();
  int find_lost() const;
  void fail_late(Operation& operation, std::chrono::milliseconds timeout);
  void fail_interrupted(const Operation& operation);
  void give_up(const std::string& why, std::exception_ptr error, int lost_rank);
  void tell_group(Lock& lock);
  void fail_all(const std::exception_ptr& error);
  size_t pending() const;

  Group& group_;
  const Topology& topology_;
  std::chrono::microseconds spin_;
  int payload_tags_;  ///< how many there are

  std::mutex mutex_;  // guards all below
  std::list<std::shared_ptr<Operation>> sends_;
  std::list<std::shared_ptr<Operation>> receives_;  ///< without a message yet, in order
  std::list<Incoming> incoming_;  ///< messages begun or not yet asked for, in order
  std::vector<uint64_t> sent_;    ///< by destination: messages so far
  size_t kept_bytes_ = 0;
  Clock::time_point next_look_{};
  bool registered_ = false;
  bool closed_ = false;
  std::exception_ptr failure_;
  std::string gave_up_;       ///< why, until the group is told
  int lost_rank_ = -1;        ///< that gave_up_ is about
  std::exception_ptr error_;  ///< what this rank gave up for
};

}  // namespace farandole::comm::mpi
