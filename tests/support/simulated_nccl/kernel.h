// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "support/simulated_nccl/operation.h"
#include "support/simulated_nccl/region.h"

namespace farandole::sim::nccl {

/// Waits until its argument returns true; throws if that is no use any more.
using Until = std::function<void(const std::function<bool()>&)>;

/// Does all operations on this rank at once, on the thread of a stream: first all messages go, then
/// results are reduced. In a group, messages of collectives go before sends. Each collective sends
/// a message, which may be empty, from every rank to every other. Throws Misuse if ranks do not fit
/// together.
void run_kernel(const std::vector<Operation>& operations, Member member, Region& region,
                const Until& until);

}  // namespace farandole::sim::nccl
