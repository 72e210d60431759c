// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "comm/shm/bell.h"
#include "comm/shm/system/cache_line.h"
#include "farandole/comm/types.h"

namespace farandole::comm::shm {

// The layout of a group's control memory, mapped by all its ranks:
//   GroupBlock | RankBlock of rank 0 | RankBlock of rank 1 | ...
// Each word has one writer unless its comment says otherwise. How the words are used, and in which
// memory order, is told in lockstep.h.

/// Counts the layouts of what ranks share, and the meanings of its words. Count it up with each
/// change that the sizes do not show.
constexpr int kLayout = 4;
/// Tensor bytes that travel in the very line that announces a collective.
constexpr size_t kInlineBytes = 24;

/// What a rank announces when it enters a collective. Ranks compare all but the two places.
struct Signature {
  OpKind operation;
  DataType dtype;
  ReduceOp reduce_op;
  uint8_t filled;  ///< whether this rank's first chunk is in its staging slot already; not compared
  int32_t root;    ///< -1 where the operation has none; of bucket_reduction: an allocation
  uint64_t count;  ///< elements, as the operation counts them
  uint64_t
      input;  ///< place in symmetric memory, 0 elsewhere; see symmetric_registry.h; not compared
  uint64_t output;  ///< likewise
};
/// Whether two ranks may make one collective of these calls.
inline bool is_same_call(const Signature& a, const Signature& b) {
  return a.operation == b.operation && a.dtype == b.dtype && a.reduce_op == b.reduce_op &&
         a.root == b.root && a.count == b.count;
}
constexpr size_t kSignatureWords = sizeof(Signature) / sizeof(uint64_t);
static_assert(sizeof(Signature) == kSignatureWords * sizeof(uint64_t));

/// One line: number, signature and, for tiny tensors, the data.
struct alignas(kCacheLine) Header {
  std::atomic<uint64_t> sequence;  ///< written last, with release order
  std::array<std::atomic<uint64_t>, kSignatureWords> signature;
  std::array<std::byte, kInlineBytes> inline_data;
};
static_assert(sizeof(Header) == kCacheLine);
/// The call in a header whose sequence was read before.
inline Signature call_in(const Header& header) {
  std::array<uint64_t, kSignatureWords> words;
  for (size_t i = 0; i < kSignatureWords; ++i) {
    words[i] = header.signature[i].load(std::memory_order_relaxed);
  }
  Signature signature;
  std::memcpy(&signature, words.data(), sizeof(signature));
  return signature;
}

/// Writes the call of a header whose sequence is written next.
inline void put_call(Header& header, const Signature& signature) {
  std::array<uint64_t, kSignatureWords> words;
  std::memcpy(words.data(), &signature, sizeof(signature));
  for (size_t i = 0; i < kSignatureWords; ++i) {
    header.signature[i].store(words[i], std::memory_order_relaxed);
  }
}

/// Whether a rank still takes part.
enum class RankState : uint32_t { kActive, kWritingReason, kAborted, kLeft };

struct alignas(kNoSharing) RankBlock {
  std::array<Header, 2> headers;                    ///< of collectives s and s + 1, by parity
  alignas(kNoSharing) std::atomic<uint64_t> steps;  ///< barriers passed within collectives
  std::atomic<int> core;  ///< 1 + where the rank last entered a collective; a hint, 0: unknown
  std::atomic<uint32_t> thread;   ///< that enters collectives; see crossed_waits.h
  std::atomic<uint32_t> crossed;  ///< why the rank gives up; see crossed_waits.h
  std::atomic<uint32_t> forming;  ///< whom it waits for to form a group; see crossed_waits.h
  std::atomic<uint64_t> alone;    ///< collective in which no other thread was; see crossed_waits.h
  alignas(kNoSharing) std::atomic<RankState> state;
  std::array<char, 512> reason;  ///< why kAborted; written before it
  int lost_rank;  ///< that ended or left, by its number in the group of all hosts; else -1
  int origin;     ///< a rank of another host that has aborted, by the same numbers; -1: this one
};

/// The number of the last collective that the rank has entered; 0: none.
inline uint64_t entered(const RankBlock& block) {
  return std::max(block.headers[0].sequence.load(std::memory_order_seq_cst),
                  block.headers[1].sequence.load(std::memory_order_seq_cst));
}

struct alignas(kNoSharing) GroupBlock {
  Bell posts;                                        ///< rung for posts, aborts and leaves
  alignas(kNoSharing) std::atomic<uint32_t> broken;  ///< 1 once a rank has aborted; any rank
};

}  // namespace farandole::comm::shm
