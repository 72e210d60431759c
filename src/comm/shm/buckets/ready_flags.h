// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/shm/control_block.h"
#include "farandole/comm/symmetric_memory.h"

namespace farandole::comm::shm {

/// Which buckets of a BucketReduction each rank has filled, in symmetric memory. Only rank r writes
/// the part of rank r:
///   Publications | indices of the published buckets, in order | two reports, used alternately
/// A reader loads one counter per rank, and one index per new publication. The first indices are in
/// the cache line of the counter.
///
/// Memory order. An index is written before the counter that includes it (release) and read after
/// the counter (acquire). The same holds for everything that the rank did before: its weight, and
/// the contents of the bucket. shared_bucket_reduction.h explains when parts are written again.
///
/// Threads: one, as BucketReduction.
class ReadyFlags {
 public:
  /// Bytes of the part of each rank.
  static size_t part_bytes(size_t buckets, size_t report_bytes);

  /// `memory` is zeroed and of part_bytes().
  ReadyFlags(std::shared_ptr<SymmetricMemory> memory, int world_size, size_t buckets,
             size_t report_bytes);

  /// The number of its allocation in the group.
  uint64_t number() const { return memory_->number(); }

  /// Round and number of publications in one word, so that a reader recognizes another round.
  static uint64_t counter(uint64_t round, size_t publications) {
    return round << 32 | publications;
  }
  static bool is_of_round(uint64_t counter, uint64_t round) {
    return static_cast<uint32_t>(counter >> 32) == static_cast<uint32_t>(round);
  }
  static size_t publications_in(uint64_t counter) { return static_cast<uint32_t>(counter); }

  uint64_t counter_of(int rank) const {
    return part(rank)->counter.load(std::memory_order_acquire);
  }
  /// The bucket of one of the publications that counter_of(rank) included.
  size_t bucket_of(int rank, size_t publication) const {
    return indices(rank)[publication].load(std::memory_order_relaxed);
  }
  double weight_of(int rank) const { return part(rank)->weight; }
  /// Where `rank` writes its report of a turn; consecutive turns use different memory.
  std::byte* report_of(int rank, uint64_t turn) const {
    return parts_[static_cast<size_t>(rank)] + reports_offset_ + turn % 2 * report_stride_;
  }

  void set_weight(int own_rank, double weight) { part(own_rank)->weight = weight; }
  /// Publishes `bucket`, after `before` others of the round.
  void publish(int own_rank, uint64_t round, size_t before, size_t bucket) {
    indices(own_rank)[before].store(static_cast<uint32_t>(bucket), std::memory_order_relaxed);
    part(own_rank)->counter.store(counter(round, before + 1), std::memory_order_release);
  }

 private:
  struct Publications {
    std::atomic<uint64_t> counter;
    double weight;
  };

  Publications* part(int rank) const {
    return reinterpret_cast<Publications*>(parts_[static_cast<size_t>(rank)]);
  }
  using Index =
      std::atomic<uint32_t>;  ///< a reader in a round that is over may find a later round's
  Index* indices(int rank) const { return reinterpret_cast<Index*>(part(rank) + 1); }

  std::shared_ptr<SymmetricMemory> memory_;
  std::vector<std::byte*> parts_;  ///< by rank; each begins a page
  size_t reports_offset_;
  size_t report_stride_;
};

}  // namespace farandole::comm::shm
