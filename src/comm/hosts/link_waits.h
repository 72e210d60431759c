// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/shm/control_block.h"
#include "comm/shm/crossed_waits.h"
#include "farandole/comm/topology.h"
#include "farandole/export.h"

namespace farandole::comm::hosts {

/// CrossedWaits between ranks of different hosts, and in groups of MPI. A rank that has waited for
/// a while tells its peers which collective it is in. Each rank keeps what it has heard of all
/// ranks of the group in memory of its own, laid out as the control memory that ranks of one host
/// share. MultiHostCommunicator learns in each collective which thread calls the group on a peer.
/// In groups of MPI, the thread is unknown until the peer tells it. The peer finds nothing if two
/// of its threads call the two groups.
///
/// What a rank has told stays true until the peer enters that collective. The rank tells it once,
/// and again when its state has changed.
///
/// Memory order: as for the headers of control memory; see lockstep.h.
///
/// Threads: enter(), look() and news() as CrossedWaits; hear() from one thread at a time; end()
/// from any.
class FARANDOLE_API LinkWaits {
 public:
  LinkWaits(const std::string& group, const Topology& topology);

  /// This rank enters collective `sequence`, which is `call`.
  void enter(uint64_t sequence, const shm::Signature& call);
  /// The thread that calls the group on this rank, for peers to learn in each collective.
  uint32_t thread() const { return blocks_[static_cast<size_t>(rank_)].thread.load(); }
  void note_thread(int peer, uint32_t thread) {
    blocks_[static_cast<size_t>(peer)].thread.store(thread);
  }
  /// See CrossedWaits::look().
  std::optional<shm::CrossedWaits::Crossing> look(const std::function<bool(int rank)>& is_missing);
  /// See CrossedWaits::look_while_forming(). Any thread.
  std::optional<shm::CrossedWaits::Crossing> look_while_forming(
      const std::function<bool(int rank)>& is_missing) {
    return waits_.look_while_forming(is_missing);
  }
  CommError error_for(const shm::CrossedWaits::Crossing& crossing, const std::string& call,
                      Fault fault) const {
    return waits_.error_for(crossing, call, std::move(fault));
  }
  CommError error_while_forming(const shm::CrossedWaits::Crossing& crossing) const {
    return waits_.error_while_forming(crossing);
  }
  /// What to tell the peers after look(); empty: they know it, or this rank has not waited for
  /// long.
  std::string news();
  /// What to tell the peers after look_while_forming(); empty: they know it. Any thread.
  std::string news_of_formation();
  /// What `peer` has told.
  void hear(int peer, const std::string& text);
  /// The group is over: no rank waits in it any more.
  void end();

 private:
  /// What a rank tells.
  struct News {
    uint64_t sequence;
    shm::Signature call;
    uint64_t alone;  ///< as in RankBlock, like the others
    uint32_t thread;
    uint32_t crossed;
    uint32_t forming;
    uint32_t unused;
  };

  News own_news() const;
  static std::string text_of(const News& news);

  const int rank_;
  const int world_size_;
  const std::unique_ptr<shm::RankBlock[]> blocks_;  ///< by rank
  shm::CrossedWaits waits_;
  int looks_ = 0;                               ///< in the present collective
  std::string told_;                            ///< in the present collective
  std::atomic<uint64_t> told_of_formation_{0};  ///< News::forming and News::crossed
};

}  // namespace farandole::comm::hosts
