// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>

#include "support/simulated_nccl/region.h"

namespace farandole::sim::nccl {

/// Thrown to whoever waits when the communicator is aborted.
struct Aborted {};

/// Returns when `done` does return true. Throws Aborted if `cancelled` is set, and Misuse with the
/// text of a fault that any rank has published in `region`.
void wait_until(const std::function<bool()>& done, const std::atomic<bool>& cancelled,
                const Region& region);

}  // namespace farandole::sim::nccl
