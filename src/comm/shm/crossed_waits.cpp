// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/crossed_waits.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>

#include "comm/fork_safe_mutex.h"
#include "comm/queued_call.h"
#include "comm/shm/signature_text.h"
#include "comm/start_thread.h"

namespace farandole::comm::shm {
namespace {

/// RankBlock::thread of a rank on which several threads have called the group.
constexpr uint32_t kSeveralThreads = ~uint32_t{0};
/// So many looks in a row have to find the same.
constexpr int kLooks = 20;

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
  const std::set<std::pair<int, std::string>> different(processes_.begin(), processes_.end());
  if (different.size() != processes_.size()) processes_.clear();  // ranks that are threads
  const std::lock_guard lock(registry_mutex());
  registry().push_back(this);
}

CrossedWaits::~CrossedWaits() {
  const std::lock_guard lock(registry_mutex());
  auto& groups = registry();
  groups.erase(std::find(groups.begin(), groups.end(), this));
}

void CrossedWaits::note_call() {
  std::atomic<uint32_t>& thread = ranks_[rank_].thread;
  const uint32_t own = QueuedCall::current_caller().number;
  uint32_t before = thread.load(std::memory_order_relaxed);
  if (before == own || (before == 0 && thread.compare_exchange_strong(before, own))) return;
  thread.store(kSeveralThreads, std::memory_order_relaxed);
}

void CrossedWaits::ask_about_threads(bool (*ask)(int thread)) { may_others_call.store(ask); }

void CrossedWaits::look_at_threads() {
  const uint64_t sequence = entered(rank_);
  const int caller = QueuedCall::current_caller().thread;
  const auto ask = may_others_call.load();
  if (ask == nullptr) {
    if (caller == ::getpid()) alone_->store(sequence);
    return;
  }
  try {
    start_thread("farandole ask", "a look at other threads",
                 [ask, caller, sequence, alone = alone_] {
                   if (!ask(caller)) alone->store(sequence);
                 })
        .detach();
  } catch (const SystemError&) {  // nothing is known
  }
}

std::optional<CrossedWaits::Crossing> CrossedWaits::look(
    const std::function<bool(int rank)>& is_missing) {
  const auto found = find(is_missing);
  looks_ = found && last_ == found ? looks_ + 1 : 0;
  last_ = found;
  if (!found) return std::nullopt;
  if (!found->was_told) {
    if (looks_ % kLooks == 0) look_at_threads();
    if (looks_ < kLooks || !found->is_sure) return std::nullopt;
  }
  ranks_[rank_].crossed.store(1, std::memory_order_seq_cst);
  return found;
}

CommError CrossedWaits::error_for(const Crossing& crossing, const std::string& collective,
                                  Fault fault) const {
  return CommError(
      "crossed-waits",
      collective + " and " + topology_.describe(crossing.peer) +
          " wait for each other: that rank is in collective #" + std::to_string(crossing.sequence) +
          " " + text_of(crossing.call) + " of group '" + crossing.group +
          "', which this rank has not called.",
      "the ranks call the collectives of these groups in different orders. Most often one rank had "
      "a batch less and has left the training loop.",
      "give every rank the same number of batches (drop_last=True), or train within join(); call "
      "the collectives of different groups in the same order on every rank.",
      std::move(fault));
}

std::optional<CrossedWaits::Crossing> CrossedWaits::find(
    const std::function<bool(int rank)>& is_missing) const {
  const uint64_t alone = QueuedCall::is_caller_stuck() ? alone_->load() : 0;
  ranks_[rank_].alone.store(alone, std::memory_order_seq_cst);
  const std::lock_guard lock(registry_mutex());
  for (int peer = 0; peer < static_cast<int>(processes_.size()); ++peer) {
    if (peer == rank_ || !is_missing(peer)) continue;
    for (const CrossedWaits* other : registry()) {
      if (other == this) continue;
      const auto crossing = crossing_in(*other, peer);
      if (crossing && is_missing(peer)) return crossing;
    }
  }
  return std::nullopt;
}

std::optional<CrossedWaits::Crossing> CrossedWaits::crossing_in(const CrossedWaits& other,
                                                                int peer) const {
  const int own_there = other.rank_;
  const int peer_there = other.rank_of(processes_[static_cast<size_t>(peer)]);
  if (peer_there < 0 ||
      other.processes_[static_cast<size_t>(own_there)] != processes_[static_cast<size_t>(rank_)]) {
    return std::nullopt;
  }
  const uint64_t sequence = other.entered(peer_there);
  if (sequence <= other.entered(own_there)) return std::nullopt;
  const RankBlock& block = other.ranks_[peer_there];
  const bool was_told = block.crossed.load(std::memory_order_seq_cst) != 0;
  const bool waits = block.state.load(std::memory_order_acquire) == RankState::kActive;
  if (!waits && !was_told) return std::nullopt;

  const uint32_t own_thread = QueuedCall::current_caller().number;
  const uint32_t peer_thread = block.thread.load(std::memory_order_relaxed);
  const bool own_is_known = other.is_called_by(own_thread, own_there);
  const bool peer_is_known = is_called_by(peer_thread, peer);
  const bool is_one_thread =
      is_called_by(own_thread, rank_) && peer_thread != 0 && peer_thread != kSeveralThreads &&
      (own_is_known || other.is_called_by(0, own_there)) &&
      (peer_is_known || is_called_by(0, peer)) && (own_is_known || peer_is_known);
  if (!is_one_thread) return std::nullopt;
  const bool is_sure = ranks_[rank_].alone.load(std::memory_order_seq_cst) == entered(rank_) &&
                       block.alone.load(std::memory_order_seq_cst) == sequence;
  return Crossing{peer,     other.group_, call_in(block.headers[sequence % 2]),
                  sequence, is_sure,      was_told};
}

/// -1: it is not among these.
int CrossedWaits::rank_of(const std::pair<int, std::string>& process) const {
  const auto found = std::find(processes_.begin(), processes_.end(), process);
  return found == processes_.end() ? -1 : static_cast<int>(found - processes_.begin());
}

/// Whether `thread` alone has called this group on `rank`; 0: none has.
bool CrossedWaits::is_called_by(uint32_t thread, int rank) const {
  return ranks_[rank].thread.load(std::memory_order_relaxed) == thread;
}

/// The number of the last collective that `rank` has entered.
uint64_t CrossedWaits::entered(int rank) const {
  return std::max(ranks_[rank].headers[0].sequence.load(std::memory_order_seq_cst),
                  ranks_[rank].headers[1].sequence.load(std::memory_order_seq_cst));
}

}  // namespace farandole::comm::shm
