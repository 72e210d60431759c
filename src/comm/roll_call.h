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

namespace farandole::comm {

/// The ranks that form a group together.
struct Roll {
  std::string session;  ///< random; no other try to form a group has it
  std::vector<Presence> ranks;
};

/// Makes sure that the ranks which form a group are all there, now, and are of one kind, whatever
/// earlier tries have left in the store: of this process or of one before a restart.
///
/// Protocol. Each rank puts a random nonce into its `hello`. Rank 0 answers with a `roll`, which
/// has the hellos that it has seen and a random session, and a new one whenever a hello has
/// changed. A rank that finds its own nonce there knows that rank 0 is there now, and acknowledges
/// the session, beside its nonce; so rank 0 knows that it is there too. Once all have acknowledged
/// the same full roll, rank 0 tells them to `go`. Words that echo no nonce of now are not for now.
///
/// A hello whose process has ended is of an earlier try, if its count of restarts is another; else
/// that rank has died, and nobody waits for it for long.
///
/// Threads: one call at a time.
class RollCall {
 public:
  using Clock = std::chrono::steady_clock;

  /// `store` outlives this. `while_waiting`, which may be empty, is called now and then; what it
  /// throws ends the wait.
  RollCall(Store& store, std::string group, int rank, Presence own,
           std::chrono::milliseconds timeout, std::function<void()> while_waiting = {});

  /// Collective. Throws TimeoutError naming those that did not come, PeerFailure where one died,
  /// MismatchError where one has another build or world size, AbortedError where rank 0 gave up.
  Roll run();

 private:
  /// A rank's hello, and its process as far as this one sees it.
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
  void check_alike(int rank, const Presence& first, const Presence& other) const;
  void wait_a_moment() const;
  [[noreturn]] void throw_absent() const;
  std::vector<int> absent() const;
  void tell(const std::exception& error) noexcept;

  std::string key(const std::string& name, int rank = -1) const;

  Store& store_;
  std::string group_;
  int rank_;
  Presence own_;
  std::chrono::milliseconds timeout_;
  std::function<void()> while_waiting_;
  Clock::time_point begin_ = Clock::now();
  std::vector<Known> known_;        ///< by rank
  std::vector<bool> acknowledged_;  ///< by rank; of rank 0 alone
  std::string session_;             ///< of the newest roll; empty: none that echoes this rank
};

}  // namespace farandole::comm
