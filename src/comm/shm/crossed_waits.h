// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/shm/control_block.h"
#include "farandole/comm/topology.h"
#include "farandole/export.h"

namespace farandole::comm::shm {

/// Finds two ranks that wait for each other, each in a group of its own: rank 1 in the barrier of
/// one group, because it has a batch less, and rank 0 in the gradients of another. Both would wait
/// until their timeout.
///
/// Rule. This rank waits in group G for a peer that has not entered its collective. The two are
/// deadlocked if
///   1. the peer has entered a collective of another group L that this rank has not entered, and
///   2. on both ranks the thread that calls G and the thread that calls L are one thread.
/// By 1 the peer's thread stays in L until this rank enters there, and by 2 the thread that would
/// is the one that waits here. A rank that computes, however long, is in no collective, so 1 does
/// not hold. A group that several threads of a rank have called, or that has asynchronous calls,
/// fails 2 from then on. A group that a rank has not called yet passes 2 there, if the other rank
/// has called both.
///
/// What threads have called says nothing of a thread that has yet to make its first call. So both
/// ranks look at the threads of their programs, once 1 and 2 hold: where another one may call
/// collectives, nothing is found. Without ask_about_threads() the main thread counts as the only
/// one.
///
/// What 1 and 2 are read from stays as it is while both ranks wait, and after one of them has given
/// up. Who uses it reads it for a while before it gives up; then it calls tell(), so that the other
/// rank gives up for the same reason and not for the end of this one.
///
/// Ranks of one host that are processes; others are never found.
///
/// Threads: note_call(), find() and tell() come from the thread that calls collectives. The
/// registry of all groups of the process has a lock, which is held while their memory is read.
/// Fork: a child may destroy this.
class FARANDOLE_API CrossedWaits {
 public:
  /// The peer and its collective in the other group.
  struct Crossing {
    int peer;  ///< its rank in this group
    std::string group;
    Signature call;
    uint64_t sequence;
    bool is_sure;   ///< on both ranks no other thread may call collectives
    bool was_told;  ///< the peer has given up for this reason

    bool operator==(const Crossing& other) const {
      return peer == other.peer && group == other.group && sequence == other.sequence;
    }
  };

  /// `ranks`: the control memory of the group, which must outlive this object.
  CrossedWaits(std::string group, const Topology& topology, RankBlock* ranks);
  ~CrossedWaits();
  CrossedWaits(const CrossedWaits&) = delete;
  CrossedWaits& operator=(const CrossedWaits&) = delete;

  /// Another thread than the caller will make calls of the groups with this name, which are then
  /// never found. Any thread.
  static void exclude(const std::string& group);
  /// Sets what tells whether another thread than this one, as gettid() has it, may call
  /// collectives. It is called in a thread of its own, because it may have to wait for an
  /// interpreter.
  static void ask_about_threads(bool (*ask)(int thread));
  /// This thread enters a collective. Call it before the post.
  void note_call();
  /// The first of the peers for which `is_missing` that waits for this rank in another group.
  std::optional<Crossing> find(const std::function<bool(int rank)>& is_missing) const;
  /// Begins to look at the threads of this process, whose peers learn the answer in find().
  void look_at_threads();
  /// Tells the peers that this rank gives up because of a crossing.
  void tell() { ranks_[rank_].crossed.store(1, std::memory_order_seq_cst); }

 private:
  std::optional<Crossing> crossing_in(const CrossedWaits& other, int peer) const;
  int rank_of(const std::pair<int, std::string>& process) const;
  bool is_called_by(uint32_t thread, int rank) const;
  uint64_t entered(int rank) const;

  const std::string group_;
  const int rank_;
  std::vector<std::pair<int, std::string>> processes_;  ///< by rank; empty: not one each
  RankBlock* const ranks_;
  /// The collective in which no other thread was seen; 0: none.
  std::shared_ptr<std::atomic<uint64_t>> alone_ = std::make_shared<std::atomic<uint64_t>>(0);
};

}  // namespace farandole::comm::shm
