// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/lockstep.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/diagnosis.h"
#include "comm/lost_rank.h"
#include "comm/shm/signature_text.h"
#include "comm/shm/system/pause.h"
#include "comm/shm/system/reason.h"
#include "farandole/comm/events.h"
#include "farandole/comm/interrupt.h"
#include "farandole/error.h"

namespace farandole::comm::shm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

/// Checks of the posts between two checks of the clock.
constexpr int kLooksPerClock = 64;
/// How often a rank yields its core before it sleeps, if there are more ranks than cores.
constexpr int kYields = 32;
/// The longest sleep of a rank that has work to do meanwhile, for which no rank wakes it.
constexpr microseconds kNap{500};

/// The memory order of reading peers' posts, which makes visible what they wrote before. A copy of
/// this library, built only for ThreadSanitizer's tests, reads with a weaker order: that race must
/// be reported.
#ifdef FARANDOLE_SEED_RACE
constexpr std::memory_order kLook = std::memory_order_relaxed;
#else
constexpr std::memory_order kLook = std::memory_order_seq_cst;
#endif

/// The newest events of this process, one per line, for the end of the `why` of an error.
std::string recent_history() {
  constexpr size_t kEvents = 16;
  std::string text;
  for (const Event& event : recent_events(kEvents)) text += "\n  " + describe(event);
  return text.empty() ? text : "\nlast collectives of this process:" + text;
}

}  // namespace

size_t Lockstep::control_bytes(int world_size) {
  return sizeof(GroupBlock) + sizeof(RankBlock) * static_cast<size_t>(world_size);
}

Lockstep::Lockstep(std::byte* control, const Topology& topology, Liveness liveness, Options options)
    : topology_(topology),
      liveness_(std::move(liveness)),
      options_(std::move(options)),
      exec_watch_(topology, control),
      group_(reinterpret_cast<GroupBlock*>(control)),
      ranks_(reinterpret_cast<RankBlock*>(control + sizeof(GroupBlock))),
      crossed_waits_(options_.group, topology_, ranks_) {}

Header& Lockstep::header(int rank, uint64_t sequence) const {
  return ranks_[rank].headers[sequence % 2];
}

Signature Lockstep::signature_of(int rank) const { return call_in(header(rank, sequence_)); }

const std::byte* Lockstep::inline_data_of(int rank) const {
  return header(rank, sequence_).inline_data.data();
}

void Lockstep::enter(const Signature& signature, const void* data, size_t inline_bytes,
                     const WaitPolicy& wait_policy) {
  check_usable();
  ++sequence_;
  Header& own = header(topology_.rank, sequence_);
  put_call(own, signature);
  if (inline_bytes != 0) std::memcpy(own.inline_data.data(), data, inline_bytes);
  crossed_waits_.note_call();
  own.sequence.store(sequence_, std::memory_order_seq_cst);
  // These looks at core and clock cost nothing here: the peers' posts are on their way meanwhile.
  note_core();
  if (kDiagnosis) posted_ticks_ = event_ticks();
  deadline_ = {};
  latest_rank_ = -1;
  has_waited_ = false;
  wait_for_all(Post::kHeader, wait_policy);
  const int differing = kDiagnosis ? differing_rank() : -1;
  if (differing < 0) return;
  count_mismatch();
  step({wait_policy.timeout});
  fail_mismatch(differing);
}

void Lockstep::step(const WaitPolicy& wait_policy) {
  if (wait_policy.counts_from_here) deadline_ = {};
  ranks_[topology_.rank].steps.store(++steps_, std::memory_order_seq_cst);
  wait_for_all(Post::kStep, wait_policy);
}

bool Lockstep::has_posted(int rank, Post post) const {
  return post == Post::kHeader ? header(rank, sequence_).sequence.load(kLook) == sequence_
                               : ranks_[rank].steps.load(kLook) >= steps_;
}

/// Posts are never withdrawn, so each check continues at the rank that was missing in the last one.
bool Lockstep::all_posted(Post post) {
  while (first_missing_ < topology_.world_size && has_posted(first_missing_, post)) {
    ++first_missing_;
  }
  return first_missing_ == topology_.world_size;
}

void Lockstep::wait_for_all(Post post, const WaitPolicy& wait_policy) {
  first_missing_ = 0;
  if (all_posted(post)) {
    group_->posts.ring();
    return;
  }
  if (wait_policy.sleep_at_once || !spin(post, wait_policy.meanwhile)) sleep(post, wait_policy);
}

void Lockstep::note_core() {
  ranks_[topology_.rank].core.store(::sched_getcpu() + 1, std::memory_order_relaxed);
}

bool Lockstep::shares_core_with(int peer) const {
  return ranks_[peer].core.load(std::memory_order_relaxed) == ::sched_getcpu() + 1;
}

/// Checks repeatedly for a while; true once all ranks have posted.
bool Lockstep::spin(Post post, const Meanwhile* meanwhile) {
  if (post == Post::kHeader) latest_rank_ = first_missing_;
  if (options_.yield) {
    has_waited_ = true;
    for (int i = 0; i < kYields; ++i) {
      if (meanwhile != nullptr) (*meanwhile)();
      ::sched_yield();
      if (all_posted(post)) return true;
    }
    return false;
  }
  Clock::time_point begin{};
  while (true) {
    for (int i = 0; i < kLooksPerClock; ++i) {
      pause_core();
      if (all_posted(post)) return true;
      if (meanwhile != nullptr) (*meanwhile)();
      if (post == Post::kHeader) latest_rank_ = first_missing_;
    }
    has_waited_ = true;
    const auto now = Clock::now();
    if (begin == Clock::time_point{}) begin = now;
    if (now - begin >= options_.spin || shares_core_with(first_missing_)) return false;
    if (group_->broken.load(std::memory_order_relaxed) != 0) return false;
  }
}

/// The end of the current collective's wait_policy. It begins with the first wait that sleeps, so
/// that quick collectives never look at the clock.
Clock::time_point Lockstep::deadline(milliseconds timeout) {
  if (deadline_ == Clock::time_point{}) deadline_ = Clock::now() + timeout;
  return deadline_;
}

void Lockstep::sleep(Post post, const WaitPolicy& wait_policy) {
  has_waited_ = true;
  if (post == Post::kHeader) latest_rank_ = first_missing_;
  const auto deadline = this->deadline(wait_policy.timeout);
  auto next_look = Clock::now() + kLivenessInterval;
  while (true) {
    const bool naps = wait_policy.meanwhile != nullptr && (*wait_policy.meanwhile)();
    bool there = false;
    bool due = false;
    group_->posts.sleep([&] {
      there = all_posted(post);
      const auto now = Clock::now();
      due = now >= next_look;
      if (there || due || now >= deadline || group_->broken.load(std::memory_order_seq_cst) != 0) {
        return microseconds(0);
      }
      auto left = std::min<Clock::duration>(deadline - now, next_look - now);
      if (naps) left = std::min<Clock::duration>(left, kNap);
      return std::chrono::duration_cast<microseconds>(left) + microseconds(1);
    });
    if (there || all_posted(post)) return;
    if (post == Post::kHeader) latest_rank_ = first_missing_;
    if (due && post == Post::kHeader) look_for_crossing();
    look_for_failures(post, due);
    if (due) look_for_interrupt();
    if (Clock::now() >= deadline) {
      if (all_posted(post)) return;
      fail_missing(post, wait_policy.timeout);
    }
    if (due) next_look = Clock::now() + kLivenessInterval;
  }
}

void Lockstep::await(int peer, const Ready& ready, milliseconds timeout) {
  const auto limit = deadline(timeout);
  while (!ready(kLivenessInterval)) {
    look_for_abort();
    if (is_gone(peer)) {
      if (ready(milliseconds(0))) return;  // that rank had posted first
      fail_lost(peer);
    }
    look_for_interrupt();
    if (Clock::now() >= limit)
      fail_late(topology_.describe(peer), last_reached(peer), {peer}, timeout);
  }
}

/// Throws if a peer that has not posted never will. The reason of an abort is the root cause, so it
/// comes before a death, and a death before a rank that left because of it.
void Lockstep::look_for_failures(Post post, bool look_at_processes) {
  look_for_abort();
  const auto is_lost = [&](int rank, bool lost) {
    return rank != topology_.rank && !has_posted(rank, post) && lost && !has_posted(rank, post);
  };
  if (look_at_processes) {
    const int dead = first_dead([&](int rank) { return is_lost(rank, is_dead(rank)); });
    if (dead >= 0) fail_lost(dead);
  }
  for (int rank = 0; rank < topology_.world_size; ++rank) {
    if (is_lost(rank, state_of(rank) == RankState::kLeft)) fail_lost(rank);
  }
}

/// Throws if a missing peer waits for this rank in another group, and has for a while.
void Lockstep::look_for_crossing() {
  const auto crossing =
      crossed_waits_.look([&](int rank) { return !has_posted(rank, Post::kHeader); });
  if (!crossing) return;
  const CommError error =
      crossed_waits_.error_for(*crossing, describe_current(), fault_of({crossing->peer}));
  fail(std::make_exception_ptr(error), reason_of(error.what()));
}

void Lockstep::look_for_interrupt() {
  if (!is_interrupted()) return;
  const std::string subject = describe_current();
  try {
    fail(std::make_exception_ptr(group_interrupted_error(subject, fault_of({}))),
         interrupted_text(subject));
  } catch (const AbortedError&) {  // is for later calls
    throw interrupted_error(subject, fault_of({}));
  }
}

void Lockstep::look_for_abort() {
  const int rank = aborted_rank();
  if (rank < 0) return;
  try {
    throw_aborted(rank, describe_current(), fault_of({}).collective);
  } catch (const CommError&) {
    fail(std::current_exception(), ranks_[rank].reason.data(), ranks_[rank].lost_rank);
  }
}

/// Throws the error for `rank`, which has aborted. If it had lost a peer, this rank gets the same
/// error as if it had seen that itself.
void Lockstep::throw_aborted(int rank, const std::string& subject,
                             const std::string& collective) const {
  const std::string reason = ranks_[rank].reason.data();
  const int lost = ranks_[rank].lost_rank;
  const int origin = ranks_[rank].origin >= 0 ? ranks_[rank].origin : topology_.rank_in_group(rank);
  const std::string who = topology_.describe_in_group(origin);
  if (lost >= 0 && lost != topology_.rank_in_group(topology_.rank)) {
    if (lost == origin) {  // of another host, whose link tells of its end
      throw PeerFailure("peer-ended",
                        subject + ": " + who + " ended, left the group or did not answer.", reason,
                        kFixOfDeath, Fault{{lost}, collective});
    }
    const int here = topology_.rank_here(lost);
    const bool has_left = here >= 0 && state_of(here) == RankState::kLeft;
    throw PeerFailure(
        "peer-ended-elsewhere",
        subject + ": " + who + " noticed the end of " + topology_.describe_in_group(lost) + ".",
        reason, has_left ? fix_of_absence(collective) : kFixOfDeath, Fault{{lost}, collective});
  }
  throw AbortedError(
      "aborted", subject + " was aborted by " + who + ".", reason,
      "fix the cause on that rank; destroy this group and make a new one to continue.",
      Fault{{origin}, collective});
}

void Lockstep::fail_lost(int rank) {
  look_for_crossing();  // which may be why that rank has ended
  const std::string operation = name_of(signature_of(topology_.rank).operation);
  const bool has_succeeded = ended_without_error(rank);
  const std::string what =
      describe_current() + ": " + topology_.describe(rank) + " " + how_lost(rank) + ".";
  std::string why = last_reached(rank) + ".";
  if (has_succeeded && last_sequence(rank) < sequence_) {
    why =
        topology_.name_of(rank) + " ended without calling " + missing_call(operation) + "; " + why;
  }
  fail(std::make_exception_ptr(PeerFailure("peer-ended", what, why + recent_history(),
                                           has_succeeded ? fix_of_absence(operation) : kFixOfDeath,
                                           fault_of({rank}))),
       what + " " + why, topology_.rank_in_group(rank));
}

void Lockstep::fail_missing(Post post, milliseconds timeout) {
  std::string names;
  std::string whys;
  std::vector<int> late;
  for (int rank = 0; rank < topology_.world_size; ++rank) {
    if (rank == topology_.rank || has_posted(rank, post)) continue;
    late.push_back(rank);
    names += (names.empty() ? "" : ", ") + topology_.describe(rank);
    whys += (whys.empty() ? "" : "; ") + last_reached(rank);
  }
  fail_late(names, whys, std::move(late), timeout);
}

void Lockstep::fail_late(const std::string& names, const std::string& whys, std::vector<int> late,
                         milliseconds timeout) {
  const std::string what = describe_current() + " reached its timeout of " +
                           std::to_string(timeout.count()) + " ms: " + names + " did not arrive.";
  fail(std::make_exception_ptr(TimeoutError(
           "collective-timeout", what, whys + "." + recent_history(),
           "find out what that rank is doing instead (py-spy dump --pid), or increase the timeout.",
           fault_of(std::move(late)))),
       what + " " + whys + ".");
}

void Lockstep::fail(const std::exception_ptr& error, const std::string& reason, int lost_rank) {
  failure_ = error;
  abort(topology_.name_of(topology_.rank) + " gave up: " + reason, lost_rank);
  std::rethrow_exception(error);
}

/// The first rank that announced another call than rank 0; -1 if none did.
int Lockstep::differing_rank() const {
  const Signature reference = signature_of(0);
  for (int rank = 1; rank < topology_.world_size; ++rank) {
    if (!is_same_call(reference, signature_of(rank))) return rank;
  }
  return -1;
}

void Lockstep::count_mismatch() {
  const auto held = hold_off_mismatch();
  mismatches_.fetch_add(1, std::memory_order_relaxed);
}

void Lockstep::fail_mismatch(int rank) const {
  const Signature reference = signature_of(0);
  std::vector<int> differing;
  for (int other = rank; other < topology_.world_size; ++other) {
    if (!is_same_call(reference, signature_of(other))) differing.push_back(other);
  }
  throw MismatchError("collective-mismatch",
                      "collective #" + std::to_string(sequence_) + " in group '" + options_.group +
                          "': " + topology_.name_of(0) + " called " + text_of(signature_of(0)) +
                          ", " + topology_.name_of(rank) + " called " +
                          text_of(signature_of(rank)) + ".",
                      "every rank of a group must call the same collectives in the same order.",
                      "look for code that depends on the rank, or for tensors of different sizes.",
                      fault_of(std::move(differing)));
}

RankState Lockstep::state_of(int rank) const {
  return ranks_[rank].state.load(std::memory_order_acquire);
}

/// Whether the process of `rank` has ended.
bool Lockstep::is_dead(int rank) const {
  if (liveness_.is_dead(rank)) return true;
  // In this order, because a rank that leaves announces that before it releases its memory.
  return exec_watch_.has_exec_ed(rank) && state_of(rank) != RankState::kLeft;
}

/// The first rank for which `is_lost`; -1: none. One that an error has ended comes before others,
/// which may have ended because of it.
int Lockstep::first_dead(const std::function<bool(int rank)>& is_lost) const {
  int first = -1;
  for (int rank = 0; rank < topology_.world_size; ++rank) {
    if ((first >= 0 && ended_without_error(rank)) || !is_lost(rank)) continue;
    if (!ended_without_error(rank)) return rank;
    first = rank;
  }
  return first;
}

/// Of a rank that is_gone().
std::string Lockstep::how_lost(int rank) const {
  if (liveness_.is_dead(rank)) return liveness_.cause_of_death(rank);
  return state_of(rank) == RankState::kLeft ? "left the group" : "runs another program (exec)";
}

/// As far as is known. A process may leave the group at its end after an error too.
bool Lockstep::ended_without_error(int rank) const {
  const bool has_left = state_of(rank) == RankState::kLeft;
  return liveness_.is_dead(rank) ? liveness_.has_succeeded(rank).value_or(has_left) : has_left;
}

bool Lockstep::is_gone(int rank) const {
  return state_of(rank) == RankState::kLeft || is_dead(rank);
}

void Lockstep::abort(const std::string& reason, int lost_rank, int origin) {
  if (!fork_guard_.in_creator()) return;
  RankBlock& own = ranks_[topology_.rank];
  RankState expected = RankState::kActive;
  if (!own.state.compare_exchange_strong(expected, RankState::kWritingReason)) return;
  const size_t length = std::min(reason.size(), own.reason.size() - 1);
  std::memcpy(own.reason.data(), reason.data(), length);
  own.reason[length] = '\0';
  own.lost_rank = lost_rank;
  own.origin = origin;
  own.state.store(RankState::kAborted, std::memory_order_seq_cst);
  group_->broken.store(1, std::memory_order_seq_cst);
  group_->posts.ring();
  if (options_.before_abort) options_.before_abort();
}

std::pair<std::string, int> Lockstep::own_abort() const {
  const RankBlock& own = ranks_[topology_.rank];
  return {own.reason.data(), own.lost_rank};
}

void Lockstep::leave() {
  if (!fork_guard_.in_creator()) return;
  RankState expected = RankState::kActive;
  if (!ranks_[topology_.rank].state.compare_exchange_strong(expected, RankState::kLeft)) return;
  group_->posts.ring();  // waiters check the states of ranks every 50 ms anyway
}

void Lockstep::check_in_creator() const {
  if (fork_guard_.in_creator()) return;
  throw CommError(
      "forked-child", "group '" + options_.group + "' was used in a forked child process.",
      "the child shares the memory of " + topology_.name_of(topology_.rank) + " but is not a rank.",
      "call collectives only in the process that made the group, and not in DataLoader workers.");
}

void Lockstep::check_usable() const {
  check_in_creator();
  if (failure_) std::rethrow_exception(failure_);
  check_peers();
}

void Lockstep::check_alive() const {
  check_in_creator();
  check_peers();
  const int rank = first_dead([this](int each) { return is_dead(each); });
  if (rank >= 0) throw_gone(rank, "");
}

void Lockstep::check_joins(const std::function<bool(int rank)>& is_missed) {
  for (int rank = 0; rank < topology_.world_size; ++rank) {
    const bool has_left = rank != topology_.rank && state_of(rank) == RankState::kLeft;
    if (has_left && is_missed(rank)) throw_gone(rank, "new_group");
  }
  const auto crossing = crossed_waits_.look_while_forming(is_missed);
  if (crossing) throw crossed_waits_.error_while_forming(*crossing);
}

void Lockstep::throw_gone(int rank, const std::string& operation) const {
  const bool is_absent = ended_without_error(rank);
  const std::string how = liveness_.is_dead(rank) ? " ended" : " left the group";
  throw PeerFailure(
      "peer-ended",
      "group '" + options_.group + "' cannot continue: " + topology_.describe(rank) + " " +
          how_lost(rank) + ".",
      is_absent
          ? topology_.name_of(rank) + how + " without calling " + missing_call(operation) + "."
          : "the group needs all of its ranks.",
      is_absent ? fix_of_absence(operation) : kFixOfDeath, topology_.fault_of({rank}));
}

/// The first rank that has aborted because it had lost a peer, else the first that has aborted; -1:
/// none has. What aborts after the loss, as this rank's watchdog of a device does, hides no loss.
int Lockstep::aborted_rank() const {
  if (group_->broken.load(std::memory_order_relaxed) == 0) return -1;
  int first = -1;
  for (int rank = 0; rank < topology_.world_size; ++rank) {
    if (state_of(rank) != RankState::kAborted) continue;
    if (ranks_[rank].lost_rank >= 0) return rank;
    if (first < 0) first = rank;
  }
  return first;
}

void Lockstep::check_peers() const {
  const int rank = aborted_rank();
  if (rank >= 0) throw_aborted(rank, "group '" + options_.group + "'", "");
}

void Lockstep::check_peers_in_collective() const {
  const int rank = aborted_rank();
  if (rank >= 0) throw_aborted(rank, describe_current(), fault_of({}).collective);
}

std::string Lockstep::describe_current() const {
  return "collective #" + std::to_string(sequence_) + " " + text_of(signature_of(topology_.rank)) +
         " in group '" + options_.group + "' on " + topology_.own_position();
}

/// The error for these ranks in the collective that this rank is in.
Fault Lockstep::fault_of(std::vector<int> ranks) const {
  return topology_.fault_of(std::move(ranks), name_of(signature_of(topology_.rank).operation));
}

uint64_t Lockstep::last_sequence(int rank) const {
  return std::max(ranks_[rank].headers[0].sequence.load(std::memory_order_acquire),
                  ranks_[rank].headers[1].sequence.load(std::memory_order_acquire));
}

std::string Lockstep::last_reached(int rank) const {
  const uint64_t last = last_sequence(rank);
  const std::string who = topology_.name_of(rank);
  if (last == 0) return who + " has not reached any collective of this group";
  return who +
         (last == sequence_ ? " is in the middle of collective #" : " last reached collective #") +
         std::to_string(last);
}

}  // namespace farandole::comm::shm
