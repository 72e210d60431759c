// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace farandole::sim::nccl {

struct Region;

/// The kernel that runs on a rank, in shared memory. Sets of ranks are bits by rank; without a
/// kernel all are empty.
struct KernelState {
  uint32_t number;  ///< of the kernel; changes with each
  uint8_t sends;    ///< to whom
  uint8_t receives;
  uint8_t open_sends;  ///< those of which a message has not been taken
  uint8_t open_receives;
};

/// Ranks of which each is in a kernel that waits for a message of the next one's, whose kernel has
/// no such message, from `rank` around to `rank`; empty if there are none. As kernels of a
/// communicator run one after the other, those ranks wait for ever. Any thread.
std::vector<int> find_deadlock(const Region& region, int rank, int world_size);

}  // namespace farandole::sim::nccl
