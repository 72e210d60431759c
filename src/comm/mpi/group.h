// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/fork_guard.h"
#include "comm/hosts/link_waits.h"
#include "comm/shm/bootstrap/liveness.h"
#include "comm/shm/control_block.h"
#include "farandole/comm/topology.h"

namespace farandole::comm::mpi {

/// Tags of a group's messages in its MPI communicator. Tags from kRound and
/// from kConfirmation on are rounds of an Entry.
enum Tag : int {
  kNotice = 1,
  kMessageHead = 2,
  kHugeBlock = 3,
  kRound = 16,
  kConfirmation = 48,
  kPayload = 80
};

/// The MPI communicator of a group, and what its ranks tell each other outside of collectives: that
/// one aborts, leaves, or waits, and in what (hosts/link_waits.h).
///
/// A notice is a small message to each peer. Nobody waits for notices: a rank looks for them
/// (listen()) when it begins a collective, and every 50 ms while it waits, then also for those of
/// its other groups. The processes of this host are watched, too, so that their deaths are noticed
/// even by an MPI without fault tolerance.
///
/// The MPI communicator is never freed. MPI may give its number to a new one, in which messages of
/// the old one that are still on their way, as the notices of ranks that leave, would be taken for
/// messages of the new one. (Freeing it was seen to lose messages in OpenMPI 5.)
///
/// Threads: any. Fork: a child must not use it, and destroys it without a call to MPI.
class Group {
 public:
  using Clock = std::chrono::steady_clock;

  struct Options {
    std::string name;
    std::function<void()> before_abort;  ///< see CommunicatorOptions; may be empty
  };

  /// `communicator` has the ranks of `topology` in their order, and nobody else uses it.
  Group(MPI_Comm communicator, const Topology& topology, shm::Liveness liveness, Options options);
  /// Tells the peers that this rank leaves.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  MPI_Comm communicator() const { return communicator_; }
  const Topology& topology() const { return topology_; }
  const std::string& name() const { return options_.name; }
  bool in_creator() const { return fork_guard_.in_creator(); }

  /// What an error is about: how its text begins, and the collective of its Fault.
  struct Subject {
    std::function<std::string()> text;
    std::string collective = {};
  };

  /// Takes the notices that have come. Takes microseconds.
  void listen();
  /// Throws if the group is over (PeerFailure if a rank was lost, else AbortedError), if MPI is
  /// finalized, and in a forked child.
  void check_usable(const Subject& subject) const;
  /// Throws in a forked child.
  void check_in_creator() const;
  /// Ends the group on all ranks; the first reason counts. The caller holds no lock. `lost_rank`:
  /// whose end is the reason; -1: another one.
  void abort(const std::string& reason, int lost_rank = -1);
  bool is_over() const;

  /// This rank has entered collective `sequence`, the number that its goodbye tells.
  void note_entered(uint64_t sequence, const shm::Signature& call) {
    entered_ = sequence;
    waits_.enter(sequence, call);
  }
  /// Tells the peers that this rank waits in collective `sequence`.
  void say_waiting(uint64_t sequence);
  /// The last collective in which `peer` said that it waits; 0: none.
  uint64_t heard_waiting(int peer) const;

  /// Throws if a rank that has not entered collective `sequence` waits for this rank in another
  /// group; see shm::CrossedWaits. Call it after listen().
  void check_crossed_waits(uint64_t sequence, const Subject& subject);
  /// See Communicator::check_joins().
  void check_joins(const std::function<bool(int rank)>& is_missed);

  /// Whether `peer` has left; if so, the last collective that it entered.
  std::optional<uint64_t> left_after(int peer) const;
  /// Whether `peer` sends and receives no more for longer than its last messages travel.
  bool is_lost(int peer);
  /// Whether the process of `peer`, a rank of this host, has ended.
  bool is_dead(int peer) const { return liveness_.is_dead(peer); }
  /// "was killed by signal 9", "left the group"
  std::string how_lost(int peer) const;

  /// Throws if `code`, which `call` returned, is an error: PeerFailure if a process has ended.
  void check_code(int code, const char* call, const Subject& subject);

 private:
  struct Notice;
  /// A notice under way to one peer.
  struct Sending {
    std::unique_ptr<Notice> notice;
    MPI_Request request;
  };
  struct Failure {
    int rank;
    std::string reason;
    int lost_rank;
  };

  void tell(uint32_t kind, uint64_t sequence, const std::string& text, int lost_rank);
  void tell_news(const std::string& news);
  void listen_in_other_groups() const;
  void take_notices();
  void drop_sent();
  void flush(std::chrono::milliseconds limit);
  void take(const Notice& notice, int source);
  int name_failed_process(const Subject& subject);

  MPI_Comm communicator_;
  Topology topology_;
  shm::Liveness liveness_;
  Options options_;
  ForkGuard fork_guard_;
  uint64_t entered_ = 0;  ///< of the thread that calls collectives
  hosts::LinkWaits waits_;

  mutable std::mutex mutex_;  // guards all below
  std::optional<Failure> failure_;
  std::list<Sending> sending_;
  std::vector<std::optional<uint64_t>> left_;           ///< by rank
  std::vector<uint64_t> waiting_;                       ///< by rank
  std::vector<std::optional<Clock::time_point>> gone_;  ///< by rank: since when
};

}  // namespace farandole::comm::mpi
