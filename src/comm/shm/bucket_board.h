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

/// What the ranks tell each other of a BucketReduction, in symmetric memory. The part of rank r,
/// which r alone writes:
///   Publications | indices of the published buckets, in their order | two notes, used by turns
/// Who looks for news reads one word a rank, and one index for each publication that is new. The
/// first indices stand in the line of that word.
///
/// Memory order. An index is written before the word that counts it (release) and read after it
/// (acquire), and so is all that the rank did before: its weight, and what it filled. When parts
/// are written again is told in shared_bucket_reduction.h.
///
/// Threads: one, as BucketReduction.
class BucketBoard {
 public:
  /// Bytes that each rank's part needs.
  static size_t part_bytes(size_t buckets, size_t note_bytes);

  /// `memory` is zeroed and of part_bytes().
  BucketBoard(std::shared_ptr<SymmetricMemory> memory, int world_size, size_t buckets,
              size_t note_bytes);

  /// Which allocation of the group it is made of.
  uint64_t number() const { return memory_->number(); }

  /// Round and publications in one word, so that the word of another round is no news.
  static uint64_t news(uint64_t round, size_t publications) { return round << 32 | publications; }
  static bool is_of_round(uint64_t news, uint64_t round) {
    return static_cast<uint32_t>(news >> 32) == static_cast<uint32_t>(round);
  }
  static size_t publications_in(uint64_t news) { return static_cast<uint32_t>(news); }

  uint64_t news_of(int rank) const { return part(rank)->news.load(std::memory_order_acquire); }
  /// The bucket of one of the publications that were in the news of `rank`.
  size_t bucket_of(int rank, size_t publication) const {
    return indices(rank)[publication].load(std::memory_order_relaxed);
  }
  double weight_of(int rank) const { return part(rank)->weight; }
  /// Where `rank` writes the note of a turn; two turns in a row have two places.
  std::byte* note_of(int rank, uint64_t turn) const {
    return parts_[static_cast<size_t>(rank)] + notes_offset_ + turn % 2 * note_stride_;
  }

  void set_weight(int own_rank, double weight) { part(own_rank)->weight = weight; }
  /// Shows `bucket` as the next publication after `before` others of the round.
  void publish(int own_rank, uint64_t round, size_t before, size_t bucket) {
    indices(own_rank)[before].store(static_cast<uint32_t>(bucket), std::memory_order_relaxed);
    part(own_rank)->news.store(news(round, before + 1), std::memory_order_release);
  }

 private:
  struct Publications {
    std::atomic<uint64_t> news;
    double weight;
  };

  Publications* part(int rank) const {
    return reinterpret_cast<Publications*>(parts_[static_cast<size_t>(rank)]);
  }
  using Index =
      std::atomic<uint32_t>;  ///< who looks in a round that is over may find a later one's
  Index* indices(int rank) const { return reinterpret_cast<Index*>(part(rank) + 1); }

  std::shared_ptr<SymmetricMemory> memory_;
  std::vector<std::byte*> parts_;  ///< by rank; each begins a page
  size_t notes_offset_;
  size_t note_stride_;
};

}  // namespace farandole::comm::shm
