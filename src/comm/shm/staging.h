// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace farandole::comm::shm {

/// Two slots per rank through which tensors outside symmetric memory pass, used in turns. All ranks
/// count turns alike.
///
/// Every turn has one barrier after its slot is filled, so a rank that fills turn t + 1 knows that
/// its peers have passed the barrier of t and are done with turn t - 1, whose slot it fills.
///
/// Threads: the caller of the collective.
class Staging {
 public:
  /// `memory` holds bytes_for(world_size, slot_bytes), mapped by all ranks.
  Staging(std::byte* memory, size_t slot_bytes) : memory_(memory), slot_bytes_(slot_bytes) {}

  static size_t bytes_for(int world_size, size_t slot_bytes) {
    return 2 * slot_bytes * static_cast<size_t>(world_size);
  }

  size_t slot_bytes() const { return slot_bytes_; }
  uint64_t turn() const { return turn_; }
  void next_turn() { ++turn_; }
  /// After a mismatch, where some ranks have taken a turn and others have not. All ranks stand
  /// behind the same barrier then and read no slot.
  void restart() { turn_ = 0; }
  std::byte* slot(int rank, uint64_t turn) const {
    return memory_ + (2 * static_cast<size_t>(rank) + turn % 2) * slot_bytes_;
  }
  /// The slot of `rank` for the current turn.
  std::byte* slot(int rank) const { return slot(rank, turn_); }

 private:
  std::byte* memory_;
  size_t slot_bytes_;
  uint64_t turn_ = 0;
};

}  // namespace farandole::comm::shm
