// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/presence.h"
#include "comm/shm/bootstrap/process_watch.h"
#include "farandole/comm/store.h"
#include "farandole/comm/topology.h"

namespace farandole::comm {

/// The ranks that form a group together.
struct Roll {
  std::string session;  ///< random; no other try to form a group has it
  std::vector<Presence> ranks;
};

/// Makes sure that all ranks that form a group are present and compatible, whatever earlier
/// attempts have left in the store (of this process, or of one before a restart).
///
/// Protocol. Each rank puts a random nonce into its `hello`. Rank 0 answers with a `roll`: the
/// hellos that it has seen and a random session; it publishes a new roll whenever a hello has
/// changed. A rank that finds its own nonce in the roll knows that rank 0 is present, and
/// acknowledges the session together with its nonce; so rank 0 knows that this rank is present too.
/// When all ranks have acknowledged the same full roll, rank 0 publishes `go`. Messages that do not
/// echo a current nonce are ignored.
///
/// A hello whose process has ended belongs to an earlier attempt if its count of restarts is
/// different. Otherwise that rank has died, and the others do not wait for it for long. A rank that
/// gives up publishes why (rank 0 as `go`, others as `failure` with their nonce, which rank 0 looks
/// for), so the first cause is reported and not the end of a rank that followed from it.
///
/// Threads: one call at a time.
class RollCall {
 public:
  using Clock = std::chrono::steady_clock;

  /// `store` outlives this object. `while_waiting` may be empty.
  RollCall(Store& store, std::string group, int rank, Presence own,
           std::chrono::milliseconds timeout, WhileForming while_waiting = {});

  /// Collective. Throws TimeoutError with the missing ranks, PeerFailure if a rank died,
  /// MismatchError if a rank has another build or world size, AbortedError if a rank gave up.
  Roll run();

 private:
  /// A rank's hello, and what this process knows about that rank's process.
  struct Known {
    Presence presence;
    std::shared_ptr<const shm::ProcessWatch> watch;  ///< null: not seen from here
    bool was_alive = false;
    Clock::time_point since{};
  };
  enum class Life { kAlive, kEarlier, kDied };

  void explain_lost_store();
  Roll lead();
  Roll follow();
  bool hear_hellos();
  bool look_for_acknowledgements();
  void publish_roll();
  bool hear_roll();
  bool may_go();
  bool learn(int rank, const Presence& presence);
  Known see(const Presence& presence) const;
  Life life_of(const Known& known) const;
  bool is_there(int rank) const;
  void check_alive(int rank) const;
  void hear_failure(int rank) const;
  void check_alike(int rank, const Presence& first, const Presence& other) const;
  void wait_a_moment();
  void look_elsewhere() const;
  bool is_absent(int rank) const;
  [[noreturn]] void throw_absent() const;
  std::vector<int> absent() const;
  [[noreturn]] void throw_gave_up(int rank, const std::string& reason) const;
  void tell(const std::string& where, const std::string& attempt,
            const std::exception& error) noexcept;

  std::string key(const std::string& name, int rank = -1) const;

  Store& store_;
  std::string group_;
  int rank_;
  Presence own_;
  std::chrono::milliseconds timeout_;
  WhileForming while_waiting_;
  Clock::time_point begin_ = Clock::now();
  bool was_told_ = false;           ///< the user, who is waited for
  std::vector<Known> known_;        ///< by rank
  std::vector<bool> acknowledged_;  ///< by rank; of rank 0 alone
  std::string session_;             ///< of the newest roll; empty: none that echoes this rank
};

}  // namespace farandole::comm
