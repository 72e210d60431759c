// SPDX-License-Identifier: Apache-2.0
#include "process_group/device/progress_board.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "farandole/comm/shared_memory.h"
#include "farandole/comm/symmetric_memory.h"
#include "farandole/error.h"

namespace farandole {
namespace {

constexpr uint64_t kEntries = 64;
constexpr size_t kNameBytes = 40;

/// Whether all ranks pass outputs of the same size and dtype.
bool has_equal_outputs(c10d::OpType type) {
  switch (type) {
    case c10d::OpType::ALLREDUCE:
    case c10d::OpType::ALLREDUCE_COALESCED:
    case c10d::OpType::BROADCAST:
    case c10d::OpType::REDUCE:
    case c10d::OpType::ALLGATHER:
    case c10d::OpType::_ALLGATHER_BASE:
    case c10d::OpType::REDUCE_SCATTER:
    case c10d::OpType::_REDUCE_SCATTER_BASE:
    case c10d::OpType::SCATTER:
      return true;
    default:
      return false;
  }
}

}  // namespace

/// Written by its rank, read by others: they read the sequence before and after all else.
struct ProgressBoard::Entry {
  std::atomic<uint64_t> sequence;  ///< 0: none yet
  int64_t elements;                ///< of all outputs; -1 if ranks may differ
  int64_t dtype;
  char name[kNameBytes];

  std::string text() const {
    const std::string own(name, ::strnlen(name, kNameBytes));
    if (elements < 0) return own;
    return own + " of " + std::to_string(elements) + " " +
           c10::toString(static_cast<c10::ScalarType>(dtype));
  }
  bool is_same(const Entry& other) const {
    return elements == other.elements && dtype == other.dtype &&
           std::strncmp(name, other.name, kNameBytes) == 0;
  }
};

ProgressBoard::ProgressBoard(comm::Communicator& host)
    : rank_(host.rank()), world_size_(host.world_size()) {
  comm::SharedMemory* const shared = host.shared_memory();
  if (shared == nullptr) return;
  try {
    memory_ = shared->allocate_symmetric(kEntries * sizeof(Entry));
  } catch (const SystemError&) {
    return;  // on all ranks; errors say less
  }
  auto* const entries = static_cast<Entry*>(memory_->local());
  for (uint64_t i = 0; i < kEntries; ++i) new (entries + i) Entry{{0}, -1, 0, {}};
}

const ProgressBoard::Entry* ProgressBoard::entries_of(int rank) const {
  return static_cast<const Entry*>(rank == rank_ ? memory_->local() : memory_->peer(rank));
}

void ProgressBoard::note(uint64_t sequence, const Call& call) {
  if (!memory_ || sequence == 0) return;
  Entry& entry = static_cast<Entry*>(memory_->local())[sequence % kEntries];
  entry.sequence.store(0, std::memory_order_release);
  entry.elements = -1;
  entry.dtype = 0;
  if (has_equal_outputs(call.operation.type) && !call.outputs.empty()) {
    entry.elements = 0;
    for (const at::Tensor& output : call.outputs) entry.elements += output.numel();
    entry.dtype = static_cast<int64_t>(call.outputs.front().scalar_type());
  }
  const size_t length = ::strnlen(call.operation.name, kNameBytes - 1);
  std::memcpy(entry.name, call.operation.name, length);
  entry.name[length] = '\0';
  entry.sequence.store(sequence, std::memory_order_release);
}

ProgressBoard::Finding ProgressBoard::explain(uint64_t sequence) const {
  Finding finding;
  if (!memory_ || sequence == 0) return finding;
  const auto blame = [&finding](int rank, const std::string& text) {
    if (!finding.ranks.empty()) finding.why += "; ";
    finding.why += "rank " + std::to_string(rank) + " " + text;
    finding.ranks.push_back(rank);
  };
  const Entry& own = entries_of(rank_)[sequence % kEntries];
  if (own.sequence.load() != sequence) return finding;  // this rank went on for long
  for (int rank = 0; rank < world_size_; ++rank) {
    if (rank == rank_) continue;
    const Entry* const entries = entries_of(rank);
    const Entry* const last = std::max_element(
        entries, entries + kEntries,
        [](const Entry& a, const Entry& b) { return a.sequence.load() < b.sequence.load(); });
    const Entry& theirs = entries[sequence % kEntries];
    const uint64_t reached = last->sequence.load(std::memory_order_acquire);
    if (reached == 0) {
      blame(rank, "has not called any collective on its device");
    } else if (reached < sequence) {
      blame(rank, "has not called it; its last one on its device was #" + std::to_string(reached) +
                      " " + last->text());
    } else if (theirs.sequence.load(std::memory_order_acquire) == sequence &&
               !theirs.is_same(own)) {
      blame(rank, "called " + theirs.text() + " in its place, this rank " + own.text());
    } else if (theirs.sequence.load() < sequence) {
      blame(rank, "called a collective on the CPU in its place");
    }
  }
  if (finding.ranks.empty()) finding.why = "all ranks have called it, so a device or link hangs";
  finding.why += ".";
  return finding;
}

}  // namespace farandole
