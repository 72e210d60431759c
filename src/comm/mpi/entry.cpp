// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/entry.h"

#include <sched.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "comm/lost_rank.h"
#include "comm/shm/bootstrap/liveness.h"
#include "comm/shm/signature_text.h"
#include "comm/shm/system/pause.h"
#include "farandole/comm/interrupt.h"
#include "farandole/error.h"

namespace farandole::comm::mpi {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

/// Looks at the requests between two looks at the clock.
constexpr int kLooksPerClock = 64;
/// Naps of a waiting rank; they grow. Each look costs about a microsecond.
constexpr milliseconds kShortestWait{5};  ///< that a rank tells the others of
constexpr microseconds kFirstNap{20};
constexpr microseconds kLongestNap{500};

}  // namespace

Entry::Entry(Group& group, microseconds spin, bool yields)
    : group_(group), spin_(spin), yields_(yields), rounds_(std::make_unique<std::vector<Round>>()) {
  for (int distance = 1; distance < group.topology().world_size; distance *= 2) {
    rounds_->push_back({{}, {}, {MPI_REQUEST_NULL, MPI_REQUEST_NULL}});
  }
}

Entry::~Entry() {
  if (group_.is_over()) static_cast<void>(rounds_.release());
}

void Entry::meet(const shm::Signature& signature, milliseconds timeout, bool sleep_at_once) {
  ++sequence_;
  signature_ = signature;
  begin_ = {};
  over_at_ = {};
  has_said_waiting_ = false;
  has_waited_ = false;
  const uint32_t late = comes_late() ? 1 : 0;
  group_.note_entered(sequence_, signature);
  const Calls all = disseminate({sequence_, 0, late, signature}, {false, timeout, sleep_at_once});
  if (all.late != 0) {
    group_.check_usable(subject());
    disseminate(all, {true, timeout, sleep_at_once});
  }
  if (all.differ != 0) fail_mismatch();
}

/// Whether another rank may have waited for long. All have entered this collective after this rank
/// entered the last one: if that is not long ago, nobody has.
bool Entry::comes_late() {
  const auto now = Clock::now();
  const bool is_quick = now - std::exchange(entered_at_, now) < kShortestWait;
  if (is_quick) return false;
  group_.listen();
  group_.check_usable(subject());
  bool late = false;
  for (int peer = 0; peer < group_.topology().world_size; ++peer) {
    late = late || group_.heard_waiting(peer) >= sequence_;
  }
  return late;
}

/// Returns `calls` with what all ranks have marked.
Entry::Calls Entry::disseminate(Calls calls, const Wait& wait) {
  const Topology& topology = group_.topology();
  const int world = topology.world_size;
  int distance = 1;
  for (size_t k = 0; k < rounds_->size(); ++k, distance *= 2) {
    Round& round = (*rounds_)[k];
    const int to = (topology.rank + distance) % world;
    const int from = (topology.rank - distance + world) % world;
    const int tag = (wait.confirms ? kConfirmation : kRound) + static_cast<int>(k);
    round.sent = calls;
    check(MPI_Irecv(&round.received, sizeof(Calls), MPI_BYTE, from, tag, group_.communicator(),
                    &round.requests[0]),
          "MPI_Irecv");
    check(MPI_Isend(&round.sent, sizeof(Calls), MPI_BYTE, to, tag, group_.communicator(),
                    &round.requests[1]),
          "MPI_Isend");
    await(round, wait);
    const bool is_same = shm::is_same_call(calls.own, round.received.own);
    calls.differ |= round.received.differ | (is_same ? 0U : 1U);
    calls.late |= round.received.late;
  }
  return calls;
}

bool Entry::is_done(Round& round) const {
  int both = 0;
  for (MPI_Request& request : round.requests) {
    int is_done = 0;
    check(MPI_Test(&request, &is_done, MPI_STATUS_IGNORE), "MPI_Test");
    both += is_done;
  }
  return both == 2;
}

void Entry::await(Round& round, const Wait& wait) {
  for (int look = 0; look < kLooksPerClock; ++look) {
    if (is_done(round)) return;
  }
  has_waited_ = true;
  const auto end = Clock::now() + (wait.sleep_at_once ? microseconds(0) : spin_);
  while (Clock::now() < end) {
    for (int look = 0; look < (yields_ ? 1 : kLooksPerClock); ++look) {
      if (is_done(round)) return;
      if (yields_) {
        ::sched_yield();
      } else {
        shm::pause_core();
      }
    }
  }
  sleep(round, wait);
}

void Entry::sleep(Round& round, const Wait& wait) {
  if (begin_ == Clock::time_point{}) begin_ = Clock::now();
  const auto deadline = begin_ + wait.timeout;
  const auto say_at =
      begin_ + std::clamp<milliseconds>(wait.timeout / 4, kShortestWait, shm::kLivenessInterval);
  auto next_look = Clock::now() + shm::kLivenessInterval;
  microseconds nap = kFirstNap;
  while (!is_done(round)) {
    std::this_thread::sleep_for(nap);
    nap = std::min(nap + nap / 4, kLongestNap);
    const auto now = Clock::now();
    if (now >= say_at && !has_said_waiting_) {
      has_said_waiting_ = true;
      group_.say_waiting(sequence_);
    }
    if (now >= next_look) {
      look(round, wait);
      if (is_interrupted()) {
        throw interrupted_error(describe(),
                                group_.topology().fault_of({}, name_of(signature_.operation)));
      }
      next_look = now + shm::kLivenessInterval;
    }
    if (now < deadline || wait.confirms || is_done(round)) continue;
    group_.listen();
    group_.check_usable(subject());
    fail_late(wait.timeout);
  }
}

/// Throws if this rank waits in vain; see the class for when it may give up.
void Entry::look(Round& round, const Wait& wait) {
  group_.listen();
  if (is_done(round)) return;
  if (!wait.confirms) group_.check_crossed_waits(sequence_, subject());
  if (group_.is_over()) {
    const auto now = Clock::now();
    if (over_at_ == Clock::time_point{}) over_at_ = now;
    const bool may_give_up = wait.confirms || now - over_at_ >= shm::kLivenessInterval / 2;
    return may_give_up ? group_.check_usable(subject()) : void();
  }
  const Topology& topology = group_.topology();
  for (int peer = 0; peer < topology.world_size; ++peer) {
    if (peer == topology.rank) continue;
    const auto left = group_.left_after(peer);
    if (left && *left >= sequence_) continue;  // it has taken part
    if (group_.is_lost(peer) && !is_done(round)) fail_lost(peer);
  }
}

void Entry::fail_lost(int peer) {
  const Topology& topology = group_.topology();
  const std::string operation = name_of(signature_.operation);
  const bool is_absent = group_.left_after(peer).has_value();
  throw PeerFailure(
      "peer-ended", describe() + ": " + topology.describe(peer) + " " + group_.how_lost(peer) + ".",
      (is_absent
           ? topology.name_of(peer) + " ended without calling " + missing_call(operation) + "; "
           : "") +
          last_reached(peer) + ".",
      is_absent ? fix_of_absence(operation) : kFixOfDeath, topology.fault_of({peer}, operation));
}

void Entry::fail_late(milliseconds timeout) const {
  const Topology& topology = group_.topology();
  std::string names;
  std::string whys;
  std::vector<int> late;
  for (int peer = 0; peer < topology.world_size; ++peer) {
    if (peer == topology.rank || group_.heard_waiting(peer) >= sequence_) continue;
    late.push_back(peer);
    names += (names.empty() ? "" : ", ") + topology.describe(peer);
    whys += (whys.empty() ? "" : "; ") + last_reached(peer);
  }
  if (late.empty()) names = "a message of theirs";
  throw TimeoutError(
      "collective-timeout",
      describe() + " reached its timeout of " + std::to_string(timeout.count()) + " ms: " + names +
          " did not arrive.",
      (whys.empty() ? "all other ranks wait, too" : whys) + ".",
      "find out what that rank is doing instead (py-spy dump --pid), or increase the timeout.",
      topology.fault_of(std::move(late), name_of(signature_.operation)));
}

void Entry::fail_mismatch() {
  const Topology& topology = group_.topology();
  std::vector<shm::Signature> calls(static_cast<size_t>(topology.world_size));
  check(MPI_Allgather(&signature_, sizeof(signature_), MPI_BYTE, calls.data(), sizeof(signature_),
                      MPI_BYTE, group_.communicator()),
        "MPI_Allgather");
  std::vector<int> differing;
  for (int rank = 1; rank < topology.world_size; ++rank) {
    if (!shm::is_same_call(calls.front(), calls[static_cast<size_t>(rank)])) {
      differing.push_back(rank);
    }
  }
  const shm::Signature& other = calls[static_cast<size_t>(differing.front())];
  throw MismatchError("collective-mismatch",
                      "collective #" + std::to_string(sequence_) + " in group '" + group_.name() +
                          "': " + topology.name_of(0) + " called " + shm::text_of(calls.front()) +
                          ", " + topology.name_of(differing.front()) + " called " +
                          shm::text_of(other) + ".",
                      "every rank of a group must call the same collectives in the same order.",
                      "look for code that depends on the rank, or for tensors of different sizes.",
                      topology.fault_of(differing, name_of(signature_.operation)));
}

std::string Entry::last_reached(int peer) const {
  const std::string who = group_.topology().name_of(peer);
  const uint64_t last = group_.left_after(peer).value_or(sequence_ - 1);
  if (last == 0) return who + " has not reached any collective of this group";
  return who + " last reached collective #" + std::to_string(last);
}

std::string Entry::describe() const {
  return "collective #" + std::to_string(sequence_) + " " + shm::text_of(signature_) +
         " in group '" + group_.name() + "' on " + group_.topology().own_position();
}

Group::Subject Entry::subject() const {
  return {[this] { return describe(); }, name_of(signature_.operation)};
}

}  // namespace farandole::comm::mpi
