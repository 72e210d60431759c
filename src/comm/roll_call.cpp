// SPDX-License-Identifier: Apache-2.0
#include "comm/roll_call.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "comm/process_stat.h"
#include "comm/shm/system/reason.h"
#include "farandole/comm/interrupt.h"
#include "farandole/error.h"
#include "log.h"

namespace farandole::comm {
namespace {

using std::chrono::milliseconds;

/// How long to wait for another hello if a process had ended before its hello was first seen; then
/// it counts as a rank of this attempt that has died. A restart that no launcher counts publishes
/// its new hello by then.
constexpr milliseconds kGrace{10000};
/// Pauses between two looks into the store grow to this.
constexpr milliseconds kMostPause{100};
/// How long after its sockets a dying process may still seem to run.
constexpr milliseconds kDying{1000};
/// After such a wait, or half of the timeout, the user learns who is waited for.
constexpr milliseconds kPatience{5000};
/// Ranks that come within this time are not asked whether they have given up meanwhile.
constexpr milliseconds kHurry{300};
/// The first word of a `go` that has the reason why rank 0 gives up.
constexpr char kFailed = '!';

std::string joined(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

std::string acknowledgement(const std::string& nonce, const std::string& session) {
  return nonce + " " + session;
}

}  // namespace

RollCall::RollCall(Store& store, std::string group, int rank, Presence own, milliseconds timeout,
                   WhileForming while_waiting)
    : store_(store),
      group_(std::move(group)),
      rank_(rank),
      own_(std::move(own)),
      timeout_(timeout),
      while_waiting_(std::move(while_waiting)),
      known_(static_cast<size_t>(own_.world_size)),
      acknowledged_(known_.size()) {
  own_.nonce = random_token();
  known_[static_cast<size_t>(rank_)].presence = own_;
}

std::string RollCall::key(const std::string& name, int rank) const {
  return "farandole/" + group_ + "/" + name + (rank < 0 ? "" : "/" + std::to_string(rank));
}

Roll RollCall::run() {
  try {
    if (known_.size() > 1) store_.set(key("hello", rank_), own_.encode());
    return rank_ == 0 ? lead() : follow();
  } catch (const SystemError&) {
    explain_lost_store();
    throw;
  }
}

/// Throws if the store may be gone because its host, rank 0, has died.
void RollCall::explain_lost_store() {
  if (rank_ == 0) return;
  const auto deadline = Clock::now() + kDying;
  do {
    look_elsewhere();
    Known& first = known_[0];
    first.was_alive = true;  // it has served the store
    if (is_there(0)) check_alive(0);
    std::this_thread::sleep_for(milliseconds(10));
  } while (Clock::now() < deadline);
}

Roll RollCall::lead() {
  try {
    while (true) {
      if (hear_hellos() || session_.empty()) publish_roll();
      if (look_for_acknowledgements()) break;
      wait_a_moment();
    }
  } catch (const TimeoutError&) {
    throw;  // each rank has a timeout of its own
  } catch (const std::exception& error) {
    tell(key("go"), kFailed + session_, error);
    throw;
  }
  if (known_.size() > 1) store_.set(key("go"), session_);
  Roll roll{session_, {}};
  for (const Known& known : known_) roll.ranks.push_back(known.presence);
  return roll;
}

/// True if a rank has published a new hello.
bool RollCall::hear_hellos() {
  bool changed = false;
  for (size_t rank = 1; rank < known_.size(); ++rank) {
    const int peer = static_cast<int>(rank);
    if (const auto text = store_.try_get(key("hello", peer))) {
      std::istringstream lines(*text);
      if (!learn(peer, Presence::decode(lines))) continue;
      acknowledged_[rank] = false;
      changed = true;
    }
  }
  return changed;
}

void RollCall::publish_roll() {
  session_ = random_token();
  std::string text = session_ + "\n";
  for (const Known& known : known_) text += known.presence.encode();
  if (known_.size() > 1) store_.set(key("roll"), text);
}

/// True once all ranks have acknowledged the newest roll.
bool RollCall::look_for_acknowledgements() {
  bool all = true;
  for (size_t rank = 1; rank < known_.size(); ++rank) {
    const int peer = static_cast<int>(rank);
    const Presence& presence = known_[rank].presence;
    const auto text =
        presence.is_absent() ? std::nullopt : store_.try_get(key("acknowledgement", peer));
    if (text && text->substr(0, text->find(' ')) == presence.nonce) {
      check_alike(peer, own_, presence);
      acknowledged_[rank] = *text == acknowledgement(presence.nonce, session_);
    }
    if (!presence.is_absent()) {
      check_alive(peer);
      if (Clock::now() - begin_ > kHurry) hear_failure(peer);
    }
    all = all && acknowledged_[rank];
  }
  return all;
}

Roll RollCall::follow() {
  try {
    while (true) {
      const bool has_died = is_there(0) && life_of(known_[0]) == Life::kDied;
      if (hear_roll()) {
        store_.set(key("acknowledgement", rank_), acknowledgement(own_.nonce, session_));
        check_alike(rank_, known_[0].presence, own_);
      }
      if (may_go()) break;
      if (has_died) check_alive(0);
      wait_a_moment();
    }
  } catch (const TimeoutError&) {
    throw;
  } catch (const std::exception& error) {
    tell(key("failure", rank_), own_.nonce, error);
    throw;
  }
  Roll roll{session_, {}};
  for (const Known& known : known_) roll.ranks.push_back(known.presence);
  return roll;
}

/// Accepts a roll of rank 0 that echoes this rank's nonce. True if it is a new one.
bool RollCall::hear_roll() {
  if (const auto text = store_.try_get(key("roll"))) {
    std::istringstream lines(*text);
    std::string session;
    std::getline(lines, session);
    std::vector<Presence> ranks;
    while (lines.peek() != std::istringstream::traits_type::eof()) {
      ranks.push_back(Presence::decode(lines));
    }
    const auto own = static_cast<size_t>(rank_);
    if (own < ranks.size() && ranks[own].nonce == own_.nonce) {
      if (session == session_) return false;
      session_ = session;
      ranks.resize(known_.size());
      for (size_t rank = 0; rank < ranks.size(); ++rank) learn(static_cast<int>(rank), ranks[rank]);
      return true;
    }
  }
  if (!session_.empty()) return false;
  // The roll is missing or of an earlier attempt. The death of rank 0 can be detected anyway.
  if (const auto text = store_.try_get(key("hello", 0))) {
    std::istringstream lines(*text);
    learn(0, Presence::decode(lines));
  }
  return false;
}

bool RollCall::may_go() {
  if (session_.empty()) return false;
  const auto text = store_.try_get(key("go"));
  if (!text) return false;
  if (*text == session_) return true;
  const size_t line = text->find('\n');
  if (line == std::string::npos || text->substr(0, line) != kFailed + session_) return false;
  throw_gave_up(0, text->substr(line + 1));
}

void RollCall::throw_gave_up(int rank, const std::string& reason) const {
  throw AbortedError("peer-gave-up",
                     "group '" + group_ + "' did not form: " +
                         known_[static_cast<size_t>(rank)].presence.describe(rank) + " gave up.",
                     reason, "fix the cause on that rank, then make the group again.",
                     {{rank}, ""});
}

/// True if this hello is another attempt of that rank than the known one.
bool RollCall::learn(int rank, const Presence& presence) {
  Known& known = known_[static_cast<size_t>(rank)];
  if (presence.nonce == known.presence.nonce) return false;
  known = see(presence);
  return true;
}

RollCall::Known RollCall::see(const Presence& presence) const {
  Known known{presence, nullptr, false, Clock::now()};
  if (presence.host_id == own_.host_id && presence.host_name == own_.host_name &&
      is_in_own_pid_namespace(presence.process)) {
    known.watch = shm::ProcessWatch::of(presence.pid, presence.process);
    known.was_alive = !known.watch->has_ended();
  }
  return known;
}

RollCall::Life RollCall::life_of(const Known& known) const {
  if (!known.watch || !known.watch->has_ended()) return Life::kAlive;
  if (known.presence.attempt != own_.attempt) return Life::kEarlier;
  const bool had_time = Clock::now() - known.since >= kGrace;
  return known.was_alive || had_time ? Life::kDied : Life::kEarlier;
}

bool RollCall::is_there(int rank) const {
  return !known_[static_cast<size_t>(rank)].presence.is_absent();
}

/// Throws if that rank has died. It may have ended because of another rank's failure, so that cause
/// comes first: what the caller's group knows, then that rank's own word.
void RollCall::check_alive(int rank) const {
  const Known& known = known_[static_cast<size_t>(rank)];
  if (life_of(known) != Life::kDied) return;
  look_elsewhere();
  if (rank_ == 0) hear_failure(rank);
  throw PeerFailure("peer-ended-while-forming",
                    "group '" + group_ + "' did not form: " + known.presence.describe(rank) + " " +
                        known.watch->how_it_ended() + ".",
                    "it ended before all ranks had joined.", "look at that rank's own output.",
                    {{rank}, ""});
}

/// Throws if `rank` has given up this attempt.
void RollCall::hear_failure(int rank) const {
  const auto told = store_.try_get(key("failure", rank));
  const std::string& nonce = known_[static_cast<size_t>(rank)].presence.nonce;
  if (told && told->substr(0, told->find('\n')) == nonce) {
    throw_gave_up(rank, told->substr(told->find('\n') + 1));
  }
}

/// Throws the same error on rank 0 and on `rank`.
void RollCall::check_alike(int rank, const Presence& first, const Presence& other) const {
  const auto refuse = [&](const std::string& of_first, const std::string& of_other) {
    throw MismatchError(
        "different-builds",
        "group '" + group_ + "' did not form: " + first.describe(0) + " has " + of_first + ", " +
            other.describe(rank) + " has " + of_other + ".",
        "ranks share memory, so they must use the same libraries and the same world size.",
        "start every rank with the same installation and the same world size.", {{rank}, ""});
  };
  if (first.build != other.build) refuse(first.build, other.build);
  if (first.world_size == other.world_size) return;
  refuse("world size " + std::to_string(first.world_size),
         "world size " + std::to_string(other.world_size));
}

void RollCall::wait_a_moment() {
  const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - begin_);
  look_elsewhere();
  check_forming_not_interrupted(group_);
  if (waited >= timeout_) throw_absent();
  if (waited >= std::min(kPatience, timeout_ / 2) && !std::exchange(was_told_, true)) {
    log(LogLevel::kInfo, "rank " + std::to_string(rank_) + " waits for rank " + joined(absent()) +
                             " to join group '" + group_ + "'.");
  }
  const milliseconds pause = std::min({waited / 8, kMostPause, timeout_ - waited});
  std::this_thread::sleep_for(std::max(pause, milliseconds(1)));
}

/// Throws what the caller of this roll call knows of failures.
void RollCall::look_elsewhere() const {
  if (while_waiting_) while_waiting_([this](int rank) { return is_absent(rank); });
}

/// A rank also counts as absent if the store is gone.
bool RollCall::is_absent(int rank) const {
  if (static_cast<size_t>(rank) >= known_.size()) return false;
  try {
    return !is_there(rank) && !store_.try_get(key("hello", rank));
  } catch (const SystemError&) {
    return true;
  }
}

void RollCall::throw_absent() const {
  // A rank that rank 0 does not count is not in its roll.
  if (session_.empty() && is_there(0) && life_of(known_[0]) == Life::kAlive) {
    check_alike(rank_, known_[0].presence, own_);
  }
  const std::vector<int> ranks = absent();
  throw TimeoutError(
      "rank-missing",
      "group '" + group_ + "' did not form within its timeout of " +
          std::to_string(timeout_.count()) + " ms: rank " + joined(ranks) +
          " did not arrive (seen by rank " + std::to_string(rank_) + " of " +
          std::to_string(known_.size()) + ").",
      "the store has no entry from that rank.",
      "check that the rank started, with the same store address, world size and group.",
      {ranks, ""});
}

/// The ranks without a hello; if all have one, those that have not acknowledged the roll.
std::vector<int> RollCall::absent() const {
  std::vector<int> none;
  std::vector<int> silent;
  for (size_t index = 0; index < known_.size(); ++index) {
    const int rank = static_cast<int>(index);
    if (rank == rank_) continue;
    Known known = known_[index];
    if (known.presence.is_absent()) {
      if (const auto text = store_.try_get(key("hello", rank))) {
        std::istringstream lines(*text);
        known = see(Presence::decode(lines));
      }
    }
    if (known.presence.is_absent() || life_of(known) != Life::kAlive) {
      none.push_back(rank);
    } else if (rank == 0 ? session_.empty()
                         : store_.try_get(key("acknowledgement", rank)) !=
                               acknowledgement(known.presence.nonce, session_)) {
      silent.push_back(rank);
    }
  }
  if (none.empty() && silent.empty()) silent.push_back(rank_ == 0 ? 1 : 0);
  return none.empty() ? silent : none;
}

/// Publishes why this rank gives up, for ranks that know of the attempt.
void RollCall::tell(const std::string& where, const std::string& attempt,
                    const std::exception& error) noexcept {
  try {
    store_.set(where, attempt + "\n" + shm::reason_of(error.what()));
  } catch (const std::exception&) {
    // If the store is gone, the peers see this process end, or wait for their timeout.
  }
}

}  // namespace farandole::comm
