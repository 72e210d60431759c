// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/shm/control_block.h"
#include "farandole/comm/topology.h"
#include "farandole/error.h"
#include "farandole/export.h"

namespace farandole::comm::shm {

/// Detects a deadlock of two ranks that wait for each other in two different groups: rank 1 in the
/// barrier of one group, because it has a batch less, and rank 0 in the gradients of another. Both
/// would wait until their timeout.
///
/// Rule. This rank waits in group G for a peer that has not entered its collective. The two are
/// deadlocked if
///   1. the peer has entered a collective of another group L that this rank has not entered,
///   2. on both ranks the thread that calls G and the thread that calls L are one thread, and
///   3. on both ranks that thread waits for the collective that the rank is in.
/// By 1 the peer stays in L until this rank enters there, and by 2 and 3 the thread that would is
/// the one that waits here. A rank that computes, however long, is in no collective, so 1 does not
/// hold. A group that several threads of a rank have called fails 2 from then on. A group that a
/// rank has not called yet passes 2 there, if the other rank has called both. Asynchronous calls
/// belong to the thread that has queued them (queued_call.h). For them, 3 holds while that thread
/// waits for them without a timeout and no call of another group is pending.
///
/// What threads have called says nothing of a thread that has yet to make its first call. So both
/// ranks look at the threads of their programs, once 1 and 2 hold: where another one may call
/// collectives, nothing is found. Without ask_about_threads() the main thread counts as the only
/// one.
///
/// What 1 to 3 are read from stays as it is while both ranks wait, and after one of them has given
/// up. So look() has to find it for a while before it says so; then it tells the peer, so that the
/// other rank gives up for the same reason and not for the end of this one.
///
/// Groups that form. A rank that waits for a peer to join a new group is in no collective. It looks
/// for a collective in which the peer waits for it, by the same rule, and shows the peer that it
/// does (RankBlock::forming). The peer then looks at its threads, and gives up when it is told.
///
/// Ranks of one host that are processes read each other's control memory. Ranks of different hosts
/// send each other what is in it (hosts/link_waits.h). Not detected: ranks that are threads; three
/// or more ranks that wait in a circle; ranks whose caller waits with a timeout or for a Future;
/// ranks with a pending call in another group.
///
/// Threads: note_call() and look() come from the thread that runs collectives, look_while_forming()
/// from any. The registry of all groups of the process has a lock, which is held while their memory
/// is read.
/// Fork: a child may destroy this.
class FARANDOLE_API CrossedWaits {
 public:
  using IsMissing = std::function<bool(int rank)>;
  /// RankBlock::thread of a rank on which several threads have called the group.
  static constexpr uint32_t kSeveralThreads = ~uint32_t{0};

  /// The peer and what it waits in.
  struct Crossing {
    int peer = -1;           ///< its rank in this group
    std::string other_call;  ///< "collective #4 barrier() in group 'g'"
    uint32_t token = 0;      ///< of what it waits in; see token_of()
    bool is_sure = false;    ///< the peer's thread waits, and no other may call collectives
    bool was_told = false;   ///< the peer has given up for this reason
  };

  /// `ranks`: the control memory of the group, which must outlive this object.
  CrossedWaits(std::string group, const Topology& topology, RankBlock* ranks);
  ~CrossedWaits();
  CrossedWaits(const CrossedWaits&) = delete;
  CrossedWaits& operator=(const CrossedWaits&) = delete;

  /// Sets what tells whether another thread than this one, as gettid() has it, may call
  /// collectives. It is called in a thread of its own, because it may have to wait for an
  /// interpreter.
  static void ask_about_threads(bool (*ask)(int thread));
  /// This rank enters a collective. Call it before the post.
  void note_call();
  /// Call it every kLivenessInterval while this rank waits for the peers for which `is_missing`. It
  /// returns a peer that waits for this rank in another group after it has found it for a while, or
  /// once that peer has given up. Then it publishes that this rank gives up too.
  std::optional<Crossing> look(const IsMissing& is_missing);
  /// The same while this rank waits for ranks of this group to join a new one.
  std::optional<Crossing> look_while_forming(const IsMissing& is_missing);
  /// The error of `crossing` for this rank, which is in `call` (what begins texts).
  CommError error_for(const Crossing& crossing, const std::string& call, Fault fault) const;
  /// The same for this thread, which forms a group.
  CommError error_while_forming(const Crossing& crossing) const;

 private:
  using Clock = std::chrono::steady_clock;

  /// What looks in a row have found.
  struct Search {
    uint32_t token = 0;  ///< 0: nothing
    int looks = 0;
    /// Whether no other thread of this process was seen that may call collectives.
    std::shared_ptr<std::atomic<bool>> is_alone = std::make_shared<std::atomic<bool>>(false);
  };

  static void look_at_threads(Search& search);
  static bool is_confirmed(Search& search, const Crossing& found);
  std::optional<Crossing> find_told(uint32_t own, const IsMissing& is_missing,
                                    bool* is_asked) const;
  std::optional<Crossing> find(const IsMissing& is_missing, bool is_forming) const;
  std::optional<Crossing> crossing_in(const CrossedWaits& other, int there, bool is_forming) const;
  uint32_t token_of(int rank) const;
  static std::vector<Crossing> scan(
      const std::function<Crossing(const CrossedWaits& other, int there)>& look_at);
  const std::pair<int, std::string>& process_of(int rank) const {
    return processes_[static_cast<size_t>(rank)];
  }
  int rank_of(const std::pair<int, std::string>& process) const;
  bool is_active(int rank) const;
  bool is_called_by(uint32_t thread, int rank) const;
  uint64_t entered(int rank) const;

  const std::string group_;
  const Topology topology_;
  const int rank_;
  std::vector<std::pair<int, std::string>> processes_;  ///< by rank; empty: not one each
  std::map<std::pair<int, std::string>, int> numbers_;  ///< ranks by process
  RankBlock* const ranks_;
  Search search_;
  std::mutex forming_mutex_;
  Search forming_search_;                  ///< guarded by forming_mutex_
  Clock::time_point next_forming_look_{};  ///< likewise
};

}  // namespace farandole::comm::shm
