// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_nccl/wait.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "support/simulated_nccl/misuse.h"

namespace farandole::sim::nccl {
namespace {

/// The cores may be fewer than the ranks.
void pause(int waits) {
  if (waits < 50) return std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::microseconds(std::min(waits, 500)));
}

}  // namespace

void wait_until(const std::function<bool()>& done, const std::atomic<bool>& cancelled,
                const Region& region) {
  for (int waits = 0; !done(); ++waits) {
    if (cancelled.load()) throw Aborted{};
    if (region.fault_state.load() == 2) throw Misuse(ncclInvalidUsage, region.fault_text);
    pause(waits);
  }
}

}  // namespace farandole::sim::nccl
