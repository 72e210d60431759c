// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/shm/control_block.h"

namespace farandole::comm::shm {

/// A ring per rank through which tensors outside of symmetric memory pass, chunk by chunk. Each
/// chunk is one turn: the next part of the ring, the rank's slot of that turn. All ranks take the
/// same turns, so a peer's slot has the same offset as one's own.
///
/// Every turn has one barrier after its slot is filled. So a rank that fills turn t + 1 knows that
/// its peers have passed the barrier of t and have finished turn t - 1. A chunk is at most a
/// quarter of the ring, so three consecutive turns never overlap.
///
/// Why a ring and not two slots: a store to a line that a peer has read and that is still in both
/// second-level caches must first ask that peer, at 10 GB/s on an AMD EPYC. A store to a line that
/// has left both for the shared third level runs at 40 GB/s. So the ring is larger than these
/// caches. Tiny slots have memory of their own, which stays in the first level.
///
/// Threads: the caller of the collective.
class Staging {
 public:
  /// The smallest ring: its chunks hold what all_to_all_v shows of itself.
  static constexpr size_t kLeastRingBytes = size_t{20} * 1024;

  /// `memory` holds bytes_for(world_size, ring_bytes), mapped by all ranks.
  Staging(std::byte* memory, size_t ring_bytes) : memory_(memory), ring_bytes_(ring_bytes) {}

  static size_t bytes_for(int world_size, size_t ring_bytes) {
    return ring_bytes * static_cast<size_t>(world_size);
  }

  /// What one slot holds at most.
  size_t slot_bytes() const { return (ring_bytes_ - kTinySlots * kTinyBytes) / 4; }
  /// Takes a turn whose slots hold `bytes`.
  void next_turn(size_t bytes) {
    if (bytes <= kTinyBytes) {
      begin_ = ++tiny_turns_ % kTinySlots * kTinyBytes;
      return;
    }
    const size_t lines = (bytes + kNoSharing - 1) / kNoSharing * kNoSharing;
    begin_ = end_ + lines <= ring_bytes_ ? end_ : kTinySlots * kTinyBytes;
    end_ = begin_ + lines;
  }
  /// Where the slots of the current turn begin, for slot().
  size_t place() const { return begin_; }
  /// After a mismatch, where ranks have taken different turns. All ranks stand behind the same
  /// barrier then and read no slot.
  void restart() {
    end_ = kTinySlots * kTinyBytes;
    tiny_turns_ = 0;
  }
  /// The slot of `rank` for the turn that began at `place`.
  std::byte* slot(int rank, size_t place) const {
    return memory_ + static_cast<size_t>(rank) * ring_bytes_ + place;
  }
  /// The slot of `rank` for the current turn.
  std::byte* slot(int rank) const { return slot(rank, begin_); }

 private:
  static constexpr size_t kTinyBytes = 1024;
  static constexpr size_t kTinySlots = 4;  // as many turns as chunks of a ring

  std::byte* memory_;
  size_t ring_bytes_;
  size_t begin_ = 0;
  size_t end_ = kTinySlots * kTinyBytes;
  uint64_t tiny_turns_ = 0;
};

}  // namespace farandole::comm::shm
