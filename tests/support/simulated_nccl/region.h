// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "support/simulated_nccl/channel.h"
#include "support/simulated_nccl/deadlock.h"

namespace farandole::sim::nccl {

/// What a rank says of itself to the other ranks of a communicator.
struct RankEntry {
  std::atomic<int> present;  ///< how many ranks have come by this number
  std::atomic<int> left;     ///< set when it has finalized; it starts no kernel any more
  std::atomic<KernelState> kernel;
  int64_t host_call[3];                ///< function and arguments of the last host call
  std::atomic<uint64_t> host_arrived;  ///< host calls whose host_call was there to be read
  std::atomic<uint64_t> host_done;     ///< host calls of which it has read all host_calls
};
static_assert(std::atomic<KernelState>::is_always_lock_free, "processes share it");

/// The memory that the ranks of a communicator share. All zero when it is made.
struct Region {
  std::atomic<int> world_size;   ///< as the first rank gave it; 0 before
  std::atomic<int> joined;       ///< ranks that are here
  std::atomic<int> fault_state;  ///< 0: none; 1: a rank writes fault_text; 2: fault_text is there
  char fault_text[2048];
  RankEntry ranks[kMaxRanks];
  Channel channels[kMaxRanks][kMaxRanks];  ///< [from][to]

  /// Tells all ranks of a misuse. The first one stays.
  void publish_fault(const std::string& text);
};

/// The region of that name, made by who comes first. Threads of one process get the same mapping,
/// so that ThreadSanitizer sees what they do to each other. The last one of a process to release it
/// removes the name. Throws std::system_error. Any thread.
std::shared_ptr<Region> open_region(const std::string& name);
/// Keeps others from opening the region. Called once nobody else may come, so that nothing is left
/// behind if processes are killed.
void remove_name(const std::string& name);

}  // namespace farandole::sim::nccl
