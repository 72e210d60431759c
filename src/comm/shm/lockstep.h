// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/fork_guard.h"
#include "comm/shm/await.h"
#include "comm/shm/control_block.h"
#include "comm/shm/exec_watch.h"
#include "comm/shm/liveness.h"
#include "farandole/comm/topology.h"
#include "farandole/error.h"

namespace farandole::comm::shm {

/// Moves the ranks of a host through collectives together, and says who is missing when they do
/// not.
///
/// Protocol. Collective s of a group runs on rank r as
///   enter(s): write data and signature into headers[s % 2] of r; sequence = s; wait until every
///             peer's sequence in that header is s; compare signatures.
///   step():   steps = ++k; wait until every peer's steps >= k. Any number of times.
/// Two headers are enough: a rank writes the header of s again at s + 2, so it has passed enter(s +
/// 1); then every peer has posted s + 1 and is done reading the header of s.
///
/// Memory order. What a rank wrote before posting (release, part of the seq_cst store) is seen by a
/// peer that saw the post (acquire, part of the seq_cst load).
/// Sleeping: a waiter counts itself in `sleepers`, reads `epoch`, looks once more at the posts and
/// only then sleeps on `epoch`. A rank that posts and finds everyone there looks at `sleepers`
/// and, if any, counts `epoch` up and wakes them. Posts, counts and looks are seq_cst: of two
/// ranks, one posting last and one falling asleep, at least one sees the other. Only the last rank
/// to come sees everyone right after its own post, so one system call wakes all.
///
/// Who finds that signatures differ passes a barrier of all before it says so. So no rank is still
/// at what it does while it waits (Patience::meanwhile), nor does another thread of it hold off
/// mismatches (hold_off_mismatch), once the first has thrown.
///
/// A waiter that has slept for a while asks which missing peer is dead, gone or aborted. Posts are
/// read again after that answer: a peer that finished its part and exited is no failure.
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

  /// `control` is zeroed memory that all ranks map and that outlives this object.
  Lockstep(std::byte* control, const Topology& topology, Liveness liveness, Options options);

  /// Something to do between two looks; tells whether more of it may come. It throws nothing.
  using Meanwhile = std::function<bool()>;

  /// How long to wait, whether to spin first, and what to do meanwhile.
  struct Patience {
    std::chrono::milliseconds timeout;  ///< of the collective, all of its waits together
    bool sleep_at_once = false;
    const Meanwhile* meanwhile = nullptr;  ///< null: nothing; else the rank takes but naps
  };

  /// Begins the next collective. Throws MismatchError (the group goes on) and every CommError that
  /// communicator.h lists (the group is over). `inline_bytes` of `data` travel with the header.
  void enter(const Signature& signature, const void* data, size_t inline_bytes,
             const Patience& patience);
  /// A barrier within the current collective.
  void step(const Patience& patience);
  /// Waits, within the current collective, for what `peer` does outside of shared memory. Throws as
  /// enter() does.
  void await(int peer, const Ready& ready, std::chrono::milliseconds timeout);

  /// What `rank` announced for the current collective. Valid from enter() to the next enter().
  Signature signature_of(int rank) const;
  const std::byte* inline_data_of(int rank) const;
  uint64_t sequence() const { return sequence_; }
  /// How many collectives have ended because signatures differed: the same on all ranks.
  /// Any thread.
  uint64_t mismatches() const { return mismatches_.load(std::memory_order_relaxed); }
  /// While it is held, this rank counts none, and so no rank throws one. Any thread.
  std::unique_lock<std::mutex> hold_off_mismatch() { return std::unique_lock(mismatch_mutex_); }
  /// The peer that arrived last at the current collective, -1 if nobody had to be waited for.
  int latest_rank() const { return latest_rank_; }

  /// When this rank had announced the current collective, in event_ticks().
  uint64_t posted_ticks() const { return posted_ticks_; }
  /// Whether it had to wait for longer than a moment then.
  bool has_waited() const { return has_waited_; }

  /// Tells peers on which core the calling thread waits for them.
  void note_core();
  /// Whether `peer` was last seen on the core that the calling thread spins on. Then it waits for
  /// this very core: asleep, this rank gives it away, and is woken on an idle one. (Yielding would
  /// keep both where they are: tasks that ran a moment ago are not moved.)
  bool shares_core_with(int peer) const;
  /// Whether `rank` has ended, runs another program or left; for waits that this class does not
  /// see.
  bool is_gone(int rank) const;
  /// Tells peers the first reason, then calls before_abort: the caller holds no lock. `lost_rank`:
  /// of the peer whose end or leave is that reason; -1: it is another.
  void abort(const std::string& reason, int lost_rank = -1);
  /// Tells peers that this rank will not come again. Does nothing in a forked child.
  void leave();
  /// Throws if the group is over or this is a forked child. The caller of collectives alone.
  void check_usable() const;
  /// Throws if a rank has aborted or its process has ended. Any thread.
  void check_alive() const;
  /// Throws if a rank has aborted: PeerFailure if it did because of a peer that ended or left, else
  /// AbortedError. Any thread.
  void check_peers() const;
  /// Throws in a forked child. Any thread.
  void check_in_creator() const;
  /// False in a forked child.
  bool in_creator() const { return fork_guard_.in_creator(); }

 private:
  enum class Post { kHeader, kStep };

  bool has_posted(int rank, Post post) const;
  bool all_posted(Post post);
  void wait_for_all(Post post, const Patience& patience);
  bool spin(Post post, const Meanwhile* meanwhile);
  void sleep(Post post, const Patience& patience);
  std::chrono::steady_clock::time_point deadline(std::chrono::milliseconds timeout);
  void look_for_failures(Post post, bool look_at_processes);
  void look_for_abort();
  bool is_dead(int rank) const;
  std::string cause_of_death(int rank) const;
  [[noreturn]] void fail_dead(int rank);
  [[noreturn]] void fail_left(int rank);
  [[noreturn]] void fail_lost(int rank, const std::string& how, const std::string& fix);
  [[noreturn]] void fail_missing(Post post, std::chrono::milliseconds timeout);
  [[noreturn]] void fail_late(const std::string& names, const std::string& whys,
                              std::vector<int> late, std::chrono::milliseconds timeout);
  [[noreturn]] void fail(std::exception_ptr error, const std::string& reason, int lost_rank = -1);
  [[noreturn]] void throw_aborted(int rank, const std::string& subject,
                                  const std::string& collective) const;
  int differing_rank() const;
  void count_mismatch();
  [[noreturn]] void fail_mismatch(int rank) const;
  RankState state_of(int rank) const;
  void wake_all();
  Header& header(int rank, uint64_t sequence) const;
  std::string describe_current() const;
  Fault fault_of(std::vector<int> ranks) const;
  std::string last_reached(int rank) const;

  Topology topology_;
  Liveness liveness_;
  Options options_;
  ForkGuard fork_guard_;
  ExecWatch exec_watch_;
  GroupBlock* group_;
  RankBlock* ranks_;
  uint64_t sequence_ = 0;
  uint64_t steps_ = 0;
  std::mutex mismatch_mutex_;
  std::atomic<uint64_t> mismatches_{0};  ///< counted up with mismatch_mutex_
  int first_missing_ = 0;                ///< ranks before it have posted what is waited for
  int latest_rank_ = -1;
  std::chrono::steady_clock::time_point deadline_{};  ///< zero: nobody has been waited for long
  uint64_t posted_ticks_ = 0;
  bool has_waited_ = false;
  std::exception_ptr failure_;  ///< why the group is over, as thrown on this rank
};

}  // namespace farandole::comm::shm
