// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/fork_guard.h"
#include "comm/shm/bootstrap/exec_watch.h"
#include "comm/shm/bootstrap/liveness.h"
#include "comm/shm/control_block.h"
#include "comm/shm/crossed_waits.h"
#include "comm/shm/system/await.h"
#include "farandole/comm/topology.h"
#include "farandole/error.h"

namespace farandole::comm::shm {

/// Synchronizes the ranks of a host in collectives, and names the ranks that are missing.
///
/// Protocol. Collective s of a group runs on rank r as
///   enter(s): write data and signature into headers[s % 2] of r; sequence = s; wait until every
///             peer's sequence in that header is s; compare signatures.
///   step():   steps = ++k; wait until every peer's steps >= k. Any number of times.
/// Two headers are enough: a rank overwrites the header of s at s + 2. It has then passed enter(s +
/// 1), so every peer has posted s + 1 and has finished reading the header of s.
///
/// Memory order. What a rank wrote before posting (release, part of the seq_cst store) is visible
/// to a peer that has read the post (acquire, part of the seq_cst load). Waiters sleep at the bell
/// of the group (bell.h). A rank that posts and finds that all ranks have posted rings it. Only the
/// last rank to arrive finds that right after its own post, so one system call wakes all.
///
/// A rank that finds different signatures passes a barrier of all ranks before it throws. So when
/// the first rank throws, no rank is still working while it waits (WaitPolicy::meanwhile), and no
/// other thread of a rank delays mismatches (hold_off_mismatch).
///
/// A waiter that has slept for some time checks which missing peer is dead, has left or has
/// aborted. After that it reads the posts again: a peer that finished its part and exited is no
/// failure. It also looks for a peer that waits for it in another group (crossed_waits.h).
///
/// Threads: one caller at a time; abort() from any thread.
class Lockstep {
 public:
  struct Options {
    std::string group;
    std::chrono::microseconds spin{1000};
    bool yield = false;  ///< more ranks than cores: give the core away instead of spinning
    std::function<void()> before_abort;  ///< see CommunicatorOptions; may be empty
  };

  /// Bytes of control memory for a world of `world_size`.
  static size_t control_bytes(int world_size);

  /// `control` is zeroed memory that all ranks map. It must outlive this object.
  Lockstep(std::byte* control, const Topology& topology, Liveness liveness, Options options);

  /// Work to do while waiting; returns whether there may be more. It must not throw.
  using Meanwhile = std::function<bool()>;

  /// How long to wait, whether to spin first, and what to do meanwhile.
  struct WaitPolicy {
    std::chrono::milliseconds timeout;  ///< for all waits of the collective together
    bool sleep_at_once = false;
    const Meanwhile* meanwhile =
        nullptr;                    ///< null: none; otherwise sleeps at most 500 us at a time
    bool counts_from_here = false;  ///< the timeout, instead of from the collective's first wait
  };

  /// Begins the next collective. Throws MismatchError (the group stays usable) and every CommError
  /// that communicator.h lists (the group is over). `inline_bytes` of `data` are sent in the
  /// header.
  void enter(const Signature& signature, const void* data, size_t inline_bytes,
             const WaitPolicy& wait_policy);
  /// A barrier within the current collective.
  void step(const WaitPolicy& wait_policy);
  /// Waits, within the current collective, for an action of `peer` outside of shared memory. Throws
  /// as enter() does.
  void await(int peer, const Ready& ready, std::chrono::milliseconds timeout);

  /// The signature of `rank` in the current collective. Valid from enter() to the next enter().
  Signature signature_of(int rank) const;
  const std::byte* inline_data_of(int rank) const;
  uint64_t sequence() const { return sequence_; }
  /// Number of collectives that ended because signatures differed; the same on all ranks. Any
  /// thread.
  uint64_t mismatches() const { return mismatches_.load(std::memory_order_relaxed); }
  /// While the lock is held, this rank counts no mismatch, so no rank throws one. Any thread.
  std::unique_lock<std::mutex> hold_off_mismatch() { return std::unique_lock(mismatch_mutex_); }
  /// The peer that arrived last at the current collective; -1 if this rank did not have to wait.
  int latest_rank() const { return latest_rank_; }

  /// When this rank had posted the current collective, in event_ticks().
  uint64_t posted_ticks() const { return posted_ticks_; }
  /// Whether it had to wait for more than a few spins.
  bool has_waited() const { return has_waited_; }

  /// Publishes on which core the calling thread waits.
  void note_core();
  /// Whether `peer` was last on the core on which the calling thread spins. Then it waits for this
  /// core: if this rank sleeps, the peer gets the core, and this rank is woken on an idle one.
  /// (Yielding would keep both where they are: the kernel does not move tasks that ran recently.)
  bool shares_core_with(int peer) const;
  /// Whether `rank` has ended, runs another program or has left; for waits outside of this class.
  bool is_gone(int rank) const;
  /// Publishes the first reason to the other ranks, then calls before_abort; the caller must hold
  /// no lock. `lost_rank`: the rank whose end or leave is the reason, by its number in the group
  /// that has all hosts; -1: another reason.
  void abort(const std::string& reason, int lost_rank = -1, int origin = -1);
  /// The reason and lost_rank that abort() has published for this rank. Valid within before_abort.
  std::pair<std::string, int> own_abort() const;
  /// Publishes that this rank makes no more calls. Does nothing in a forked child.
  void leave();
  /// Throws if the group is over or this is a forked child. Only the thread that calls collectives.
  void check_usable() const;
  /// Throws if a rank has aborted or its process has ended. Any thread.
  void check_alive() const;
  /// See Communicator::check_joins(). Any thread.
  void check_joins(const std::function<bool(int rank)>& is_missed);
  /// Throws if a rank has aborted: PeerFailure if the reason was a peer that ended or left,
  /// otherwise AbortedError. Any thread.
  void check_peers() const;
  /// The same within the current collective. Only the thread that calls collectives.
  void check_peers_in_collective() const;
  /// Throws in a forked child. Any thread.
  void check_in_creator() const;
  /// False in a forked child.
  bool in_creator() const { return fork_guard_.in_creator(); }

 private:
  enum class Post { kHeader, kStep };

  bool has_posted(int rank, Post post) const;
  bool all_posted(Post post);
  void wait_for_all(Post post, const WaitPolicy& wait_policy);
  bool spin(Post post, const Meanwhile* meanwhile);
  void sleep(Post post, const WaitPolicy& wait_policy);
  std::chrono::steady_clock::time_point deadline(std::chrono::milliseconds timeout);
  void look_for_failures(Post post, bool look_at_processes);
  void look_for_abort();
  void look_for_interrupt();
  void look_for_crossing();
  int aborted_rank() const;
  bool is_dead(int rank) const;
  std::string how_lost(int rank) const;
  bool ended_without_error(int rank) const;
  int first_dead(const std::function<bool(int rank)>& is_lost) const;
  [[noreturn]] void throw_gone(int rank, const std::string& operation) const;
  [[noreturn]] void fail_lost(int rank);
  [[noreturn]] void fail_missing(Post post, std::chrono::milliseconds timeout);
  [[noreturn]] void fail_late(const std::string& names, const std::string& whys,
                              std::vector<int> late, std::chrono::milliseconds timeout);
  [[noreturn]] void fail(const std::exception_ptr& error, const std::string& reason,
                         int lost_rank = -1);
  [[noreturn]] void throw_aborted(int rank, const std::string& subject,
                                  const std::string& collective) const;
  int differing_rank() const;
  void count_mismatch();
  [[noreturn]] void fail_mismatch(int rank) const;
  RankState state_of(int rank) const;
  Header& header(int rank, uint64_t sequence) const;
  std::string describe_current() const;
  Fault fault_of(std::vector<int> ranks) const;
  uint64_t last_sequence(int rank) const;
  std::string last_reached(int rank) const;

  Topology topology_;
  Liveness liveness_;
  Options options_;
  ForkGuard fork_guard_;
  ExecWatch exec_watch_;
  GroupBlock* group_;
  RankBlock* ranks_;
  CrossedWaits crossed_waits_;
  uint64_t sequence_ = 0;
  uint64_t steps_ = 0;
  std::mutex mismatch_mutex_;
  std::atomic<uint64_t> mismatches_{0};  ///< counted up with mismatch_mutex_
  int first_missing_ = 0;                ///< all ranks below have posted
  int latest_rank_ = -1;
  std::chrono::steady_clock::time_point deadline_{};  ///< zero: no wait has slept yet
  uint64_t posted_ticks_ = 0;
  bool has_waited_ = false;
  std::exception_ptr failure_;  ///< why the group is over, as thrown on this rank
};

}  // namespace farandole::comm::shm
