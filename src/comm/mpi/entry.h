// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/mpi/group.h"
#include "comm/shm/control_block.h"

namespace farandole::comm::mpi {

/// How ranks enter a collective together: each learns that all others have entered, and whether all
/// calls are the same, before MPI's collective touches memory.
///
/// Dissemination (Hensgen, Finkel, Manber 1988) in ceil(log2 P) rounds: in round k a rank sends its
/// call to rank + 2^k, with a flag whether it has seen a difference, and receives that of rank -
/// 2^k. After the last round it has heard of every rank. If calls differ, somewhere on the way from
/// one to the other two neighbours have seen it, so all ranks know it or none does; then all gather
/// all calls for the error. Messages of one round come from one rank and in order, so collectives
/// need no tags of their own.
///
/// Only here a rank waits for late ones: it spins for a while, then sleeps between looks, at most
/// 500 us at a time, and every 50 ms looks for notices and deaths. A rank that has waited for 50 ms
/// says so to all, so that at a timeout everyone knows who is late.
///
/// Giving up. MPI's collective cannot be left, so a rank must not give up when another may have
/// heard of all ranks already. A rank that enters first takes its notices: if the group is over it
/// does not enter, and if some rank has waited for long, it marks its call as late. All ranks see a
/// mark or none does. After a marked entry they confirm: a second dissemination, which nobody
/// begins who has given up and nobody leaves by a timeout. So whoever completes it knows that all
/// others will, too. Without a mark, all ranks have entered within about 50 ms, and those that hear
/// of an abort meanwhile wait as long for the entry to be completed before they give up. (This
/// relies on messages that arrive sooner than that.)
///
/// Threads: one call at a time.
class Entry {
 public:
  using Clock = std::chrono::steady_clock;

  /// `yields`: there are more ranks than cores. `group` outlives this.
  Entry(Group& group, std::chrono::microseconds spin, bool yields);
  /// Leaves the buffers to MPI if the group has failed.
  ~Entry();

  /// Begins the next collective. Throws MismatchError (the group stays usable) and every CommError
  /// that communicator.h lists (the caller aborts the group).
  void meet(const shm::Signature& signature, std::chrono::milliseconds timeout, bool sleep_at_once);

  uint64_t sequence() const { return sequence_; }
  /// "collective #42 all_reduce(float32[1024], SUM) in group 'default' on rank 0 of 2"
  std::string describe() const;
  Group::Subject subject() const;
  /// As Group::check_code(), in the current collective.
  void check(int code, const char* call) const {
    if (code != MPI_SUCCESS) group_.check_code(code, call, subject());
  }
  /// Whether this rank had to wait for more than a few looks.
  bool has_waited() const { return has_waited_; }

 private:
  /// What a rank knows of the calls of the ranks before it.
  struct Calls {
    uint64_t sequence;
    uint32_t differ;
    uint32_t late;
    shm::Signature own;
  };
  /// Buffers of one round. MPI reads and writes them while requests are pending.
  struct Round {
    Calls sent;
    Calls received;
    MPI_Request requests[2];
  };

  /// Of which of the two disseminations a wait is, and how long it takes.
  struct Wait {
    bool confirms;
    std::chrono::milliseconds timeout;
    bool sleep_at_once;
  };

  bool comes_late();
  Calls disseminate(Calls calls, const Wait& wait);
  bool is_done(Round& round) const;
  void await(Round& round, const Wait& wait);
  void sleep(Round& round, const Wait& wait);
  void look(Round& round, const Wait& wait);
  void fail_lost(int peer);
  [[noreturn]] void fail_late(std::chrono::milliseconds timeout) const;
  [[noreturn]] void fail_mismatch();
  std::string last_reached(int peer) const;

  Group& group_;
  std::chrono::microseconds spin_;
  bool yields_;
  std::unique_ptr<std::vector<Round>> rounds_;
  shm::Signature signature_{};
  uint64_t sequence_ = 0;
  Clock::time_point begin_{};  ///< of the first wait of this collective that sleeps
  Clock::time_point entered_at_{};
  Clock::time_point over_at_{};  ///< when this rank found the group over in this collective
  bool has_said_waiting_ = false;
  bool has_waited_ = false;
};

}  // namespace farandole::comm::mpi
