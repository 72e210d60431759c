// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/crossed_waits.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "comm/fork_safe_mutex.h"
#include "comm/lost_rank.h"
#include "comm/queued_call.h"
#include "comm/shm/bootstrap/liveness.h"
#include "comm/shm/signature_text.h"
#include "comm/start_thread.h"
#include "farandole/comm/fingerprint.h"

namespace farandole::comm::shm {
namespace {

/// So many looks in a row have to find the same, after the first one.
constexpr int kLooks = 20;

/// Looks at a formation that are further apart are those of different formations.
constexpr std::chrono::milliseconds kSameFormation{1000};

/// The groups of this process.
std::vector<const CrossedWaits*>& registry() {
  static auto* const groups = new std::vector<const CrossedWaits*>;  // never destroyed
  return *groups;
}

std::mutex& registry_mutex() { return fork_safe_mutex<CrossedWaits>(); }

std::atomic<bool (*)(int thread)> may_others_call{nullptr};

}  // namespace

CrossedWaits::CrossedWaits(std::string group, const Topology& topology, RankBlock* ranks)
    : group_(std::move(group)), topology_(topology), rank_(topology.rank), ranks_(ranks) {
  for (size_t rank = 0; rank < topology.pids.size(); ++rank) {
    std::string process = topology.processes[rank];
    if (rank < topology.host_of_rank.size()) {
      process += " on " + topology.host_names[static_cast<size_t>(topology.host_of_rank[rank])];
    }
    processes_.emplace_back(topology.pids[rank], std::move(process));
  }
  for (size_t rank = 0; rank < processes_.size(); ++rank) {
    numbers_.emplace(processes_[rank], static_cast<int>(rank));
  }
  if (numbers_.size() != processes_.size()) processes_.clear();  // ranks that are threads
  const std::lock_guard lock(registry_mutex());
  registry().push_back(this);
}

CrossedWaits::~CrossedWaits() {
  const std::lock_guard lock(registry_mutex());
  auto& groups = registry();
  groups.erase(std::find(groups.begin(), groups.end(), this));
}

void CrossedWaits::note_call() {
  if (search_.token != 0) {  // threads may have been started since
    search_ = {};
    ranks_[rank_].alone.store(0, std::memory_order_seq_cst);
  }
  std::atomic<uint32_t>& thread = ranks_[rank_].thread;
  const uint32_t own = QueuedCall::current_caller().number;
  uint32_t before = thread.load(std::memory_order_relaxed);
  if (before == own || (before == 0 && thread.compare_exchange_strong(before, own))) return;
  thread.store(kSeveralThreads, std::memory_order_relaxed);
}

void CrossedWaits::ask_about_threads(bool (*ask)(int thread)) { may_others_call.store(ask); }

/// Asks whether another thread of the program may call collectives. The answer comes later.
void CrossedWaits::look_at_threads(Search& search) {
  const int caller = QueuedCall::current_caller().thread;
  const auto ask = may_others_call.load();
  if (ask == nullptr) return search.is_alone->store(caller == ::getpid());
  try {
    start_thread("farandole ask", "a look at other threads",
                 [ask, caller, is_alone = search.is_alone] { is_alone->store(!ask(caller)); })
        .detach();
  } catch (const SystemError&) {  // nothing is known
  }
}

std::optional<CrossedWaits::Crossing> CrossedWaits::look(const IsMissing& is_missing) {
  if (processes_.empty()) return std::nullopt;
  const uint32_t own = token_of(rank_);
  bool is_asked = false;
  std::optional<Crossing> found = find_told(own, is_missing, &is_asked);
  if (!found) found = find(is_missing, /*is_forming=*/false);
  // A peer that forms a group finds this rank, if it knows that no other thread here may join it.
  const bool is_over =
      is_confirmed(search_, found ? *found : Crossing{-1, "", is_asked ? own : 0, false, false});
  const bool is_alone = search_.token != 0 && search_.is_alone->load();
  ranks_[rank_].alone.store(is_alone ? entered(rank_) : 0, std::memory_order_seq_cst);
  if (!is_over) return std::nullopt;
  ranks_[rank_].crossed.store(found->token, std::memory_order_seq_cst);
  return found;
}

std::optional<CrossedWaits::Crossing> CrossedWaits::look_while_forming(
    const IsMissing& is_missing) {
  const std::unique_lock lock(forming_mutex_, std::try_to_lock);
  if (!lock || processes_.empty() || Clock::now() < next_forming_look_) return std::nullopt;
  if (Clock::now() > next_forming_look_ + kSameFormation) forming_search_ = {};
  next_forming_look_ = Clock::now() + kLivenessInterval;
  std::optional<Crossing> found = find(is_missing, /*is_forming=*/true);
  ranks_[rank_].forming.store(found ? found->token : 0, std::memory_order_seq_cst);
  if (!is_confirmed(forming_search_, found.value_or(Crossing{}))) return std::nullopt;
  ranks_[rank_].crossed.store(found->token, std::memory_order_seq_cst);
  return found;
}

/// Whether `found`, with token 0 if nothing was, has been found for long enough and is sure.
bool CrossedWaits::is_confirmed(Search& search, const Crossing& found) {
  if (found.was_told) return true;
  const bool is_stuck = found.token != 0 && QueuedCall::is_caller_stuck();
  if (!is_stuck || search.token != found.token) {
    search = {};  // answers to earlier questions go nowhere
    if (!is_stuck) return false;
    search.token = found.token;
  }
  if (search.looks++ % kLooks == 0 && !search.is_alone->load()) look_at_threads(search);
  return search.looks > kLooks && search.is_alone->load() && found.is_sure;
}

CommError CrossedWaits::error_for(const Crossing& crossing, const std::string& call,
                                  Fault fault) const {
  return CommError(
      "crossed-waits",
      call + ": this rank and " + topology_.describe(crossing.peer) +
          " wait for each other. That rank is in " + crossing.other_call +
          ", which this rank has not called.",
      "the ranks make collective calls in different orders. Most often one rank had a batch less "
      "and has left the training loop.",
      "give every rank the same number of batches (drop_last=True), or train within join(); make "
      "collective calls, and calls that form groups, in the same order on every rank.",
      std::move(fault));
}

CommError CrossedWaits::error_while_forming(const Crossing& crossing) const {
  return error_for(crossing, missing_call("new_group") + " on " + topology_.own_position(),
                   topology_.fault_of({crossing.peer}));
}

/// A peer that has given up because of the wait of this rank that has the token `own`. Sets
/// `is_asked` if there is none, but one that forms a group waits for this rank.
std::optional<CrossedWaits::Crossing> CrossedWaits::find_told(uint32_t own,
                                                              const IsMissing& is_missing,
                                                              bool* is_asked) const {
  const auto look_at = [&](const CrossedWaits& other, int there) {
    const RankBlock& block = other.ranks_[there];
    const bool was_told = block.crossed.load(std::memory_order_seq_cst) == own;
    if (!was_told && block.forming.load(std::memory_order_seq_cst) != own) return Crossing{};
    Crossing found = crossing_in(other, there, /*is_forming=*/false).value_or(Crossing{});
    found.peer = rank_of(other.process_of(there));
    if (found.other_call.empty()) {
      found.other_call =
          "a call that forms a group, such as new_group() or the first save_checkpoint()";
    }
    found.token = own;
    found.was_told = was_told;
    return found;
  };
  for (const Crossing& each : scan(look_at)) {
    if (each.peer == rank_ || !is_missing(each.peer)) continue;
    if (each.was_told) return each;
    *is_asked = true;
  }
  return std::nullopt;
}

std::optional<CrossedWaits::Crossing> CrossedWaits::find(const IsMissing& is_missing,
                                                         bool is_forming) const {
  const auto look_at = [&](const CrossedWaits& other, int there) {
    const bool may_be = (&other != this || is_forming) && other.is_active(there);
    return may_be ? crossing_in(other, there, is_forming).value_or(Crossing{}) : Crossing{};
  };
  for (const Crossing& each : scan(look_at)) {
    if (is_missing(each.peer)) return each;
  }
  return std::nullopt;
}

/// What `look_at` finds in all groups of this process; a peer of -1: nothing. is_missing(), which
/// may ask a store, must not be called with the lock of the registry.
std::vector<CrossedWaits::Crossing> CrossedWaits::scan(
    const std::function<Crossing(const CrossedWaits& other, int there)>& look_at) {
  std::vector<Crossing> all;
  const std::lock_guard lock(registry_mutex());
  for (const CrossedWaits* other : registry()) {
    for (int there = 0; there < static_cast<int>(other->processes_.size()); ++there) {
      Crossing found = look_at(*other, there);
      if (found.peer >= 0) all.push_back(std::move(found));
    }
  }
  return all;
}

/// Of rank `there` of the group of `other`.
std::optional<CrossedWaits::Crossing> CrossedWaits::crossing_in(const CrossedWaits& other,
                                                                int there, bool is_forming) const {
  const int own_there = other.rank_;
  const uint64_t sequence = other.entered(there);
  if (there == own_there || sequence <= other.entered(own_there) || processes_.empty()) {
    return std::nullopt;
  }
  const int peer = rank_of(other.process_of(there));
  const RankBlock& block = other.ranks_[there];
  if (peer < 0 || peer == rank_ || other.process_of(own_there) != process_of(rank_)) {
    return std::nullopt;
  }
  const uint32_t own_thread = QueuedCall::current_caller().number;
  const uint32_t peer_thread = block.thread.load(std::memory_order_relaxed);
  const bool own_is_known = other.is_called_by(own_thread, own_there);
  const bool peer_is_known = is_called_by(peer_thread, peer);
  bool is_one_thread = peer_thread != 0 && peer_thread != kSeveralThreads &&
                       (own_is_known || other.is_called_by(0, own_there));
  if (!is_forming) {
    is_one_thread = is_one_thread && is_called_by(own_thread, rank_) &&
                    (peer_is_known || is_called_by(0, peer)) && (own_is_known || peer_is_known);
  }
  if (!is_one_thread) return std::nullopt;
  return Crossing{
      peer,
      "collective #" + std::to_string(sequence) + " " +
          text_of(call_in(block.headers[sequence % 2])) + " in group '" + other.group_ + "'",
      other.token_of(there), block.alone.load(std::memory_order_seq_cst) == sequence, false};
}

/// Names the present collective of `rank`, alike on all ranks. Not 0.
uint32_t CrossedWaits::token_of(int rank) const {
  const std::string text = topology_.session + " " + std::to_string(topology_.rank_in_group(rank)) +
                           " " + std::to_string(entered(rank));
  return static_cast<uint32_t>(fingerprint_of(group_ + " " + text).first) | 1U;
}

/// -1: it is not among these.
int CrossedWaits::rank_of(const std::pair<int, std::string>& process) const {
  const auto found = numbers_.find(process);
  return found == numbers_.end() ? -1 : found->second;
}

/// Whether `rank` has neither aborted nor left.
bool CrossedWaits::is_active(int rank) const {
  return ranks_[rank].state.load(std::memory_order_acquire) == RankState::kActive;
}

/// Whether `thread` alone has called this group on `rank`; 0: none has.
bool CrossedWaits::is_called_by(uint32_t thread, int rank) const {
  return ranks_[rank].thread.load(std::memory_order_relaxed) == thread;
}

uint64_t CrossedWaits::entered(int rank) const { return shm::entered(ranks_[rank]); }

}  // namespace farandole::comm::shm
