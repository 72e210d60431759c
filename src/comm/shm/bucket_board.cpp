// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/bucket_board.h"

#include <utility>

namespace farandole::comm::shm {
namespace {

size_t apart(size_t bytes) { return (bytes + kNoSharing - 1) / kNoSharing * kNoSharing; }

}  // namespace

size_t BucketBoard::part_bytes(size_t buckets, size_t note_bytes) {
  return apart(sizeof(Publications) + buckets * sizeof(uint32_t)) + 2 * apart(note_bytes);
}

BucketBoard::BucketBoard(std::shared_ptr<SymmetricMemory> memory, int world_size, size_t buckets,
                         size_t note_bytes)
    : memory_(std::move(memory)),
      notes_offset_(part_bytes(buckets, 0)),
      note_stride_(apart(note_bytes)) {
  for (int rank = 0; rank < world_size; ++rank) {
    parts_.push_back(static_cast<std::byte*>(memory_->peer(rank)));
  }
}

}  // namespace farandole::comm::shm
