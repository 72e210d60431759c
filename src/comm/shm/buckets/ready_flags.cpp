// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/buckets/ready_flags.h"

#include <utility>

namespace farandole::comm::shm {
namespace {

size_t apart(size_t bytes) { return (bytes + kNoSharing - 1) / kNoSharing * kNoSharing; }

}  // namespace

size_t ReadyFlags::part_bytes(size_t buckets, size_t report_bytes) {
  return apart(sizeof(Publications) + buckets * sizeof(uint32_t)) + 2 * apart(report_bytes);
}

ReadyFlags::ReadyFlags(std::shared_ptr<SymmetricMemory> memory, int world_size, size_t buckets,
                       size_t report_bytes)
    : memory_(std::move(memory)),
      reports_offset_(part_bytes(buckets, 0)),
      report_stride_(apart(report_bytes)) {
  for (int rank = 0; rank < world_size; ++rank) {
    parts_.push_back(static_cast<std::byte*>(memory_->peer(rank)));
  }
}

}  // namespace farandole::comm::shm
