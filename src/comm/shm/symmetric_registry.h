// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "comm/shm/system/segment.h"
#include "farandole/comm/symmetric_memory.h"

namespace farandole::comm::shm {

/// Where a buffer lies in symmetric memory, in one word that ranks can compare: the allocation's
/// number above, the byte offset within a rank's part below. Zero: not in symmetric memory.
class Place {
  static constexpr int kOffsetBits = 40;

 public:
  /// Bytes of a rank's part and allocations of a group that one word can tell apart.
  static constexpr uint64_t kMostBytes = uint64_t{1} << kOffsetBits;
  static constexpr uint64_t kMostAllocations = uint64_t{1} << (64 - kOffsetBits);

  Place() = default;
  explicit Place(uint64_t word) : word_(word) {}
  Place(uint64_t allocation, uint64_t offset) : word_(allocation << kOffsetBits | offset) {}

  uint64_t word() const { return word_; }
  uint64_t allocation() const { return word_ >> kOffsetBits; }
  uint64_t offset() const { return word_ & (kMostBytes - 1); }
  bool symmetric() const { return word_ != 0; }

 private:
  uint64_t word_ = 0;
};

/// The live symmetric allocations of one group on one rank. Every rank counts allocations in the
/// same order, so equal numbers mean one segment.
///
/// Threads: any. Handles remove themselves; they may outlive the group.
class SymmetricRegistry : public std::enable_shared_from_this<SymmetricRegistry> {
 public:
  /// Takes a mapping of `world_size` equal parts into the registry and hands out its owner. One
  /// call at a time. Past Place::kMostAllocations, collectives on the memory take the staged path.
  std::shared_ptr<SymmetricMemory> add(std::shared_ptr<Mapping> mapping, size_t bytes, int rank,
                                       int world_size);
  /// The place of [data, data + bytes) in this rank's part of an allocation.
  Place place_of(const void* data, size_t bytes) const;
  /// Where this process sees offset `place` of `rank`; the allocation must be alive here.
  std::byte* address_of(Place place, int rank) const;
  /// The allocation whose part of this rank holds [data, data + bytes); null if there is none.
  std::shared_ptr<SymmetricMemory> find(const void* data, size_t bytes) const;

 private:
  class Allocation;
  void remove(uint64_t number);
  static std::mutex& mutex();
  Allocation* holder_of(const void* data, size_t bytes) const;

  std::map<uint64_t, Allocation*> live_;  // guarded by mutex(); by number
  uint64_t next_number_ = 1;              // the caller of add() alone
};

}  // namespace farandole::comm::shm
