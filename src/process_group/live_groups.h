// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "farandole/process_group/process_group.h"

namespace farandole {

// The groups of this process, so that its exit finds them and a wrapped one can be told.
// Threads: any. Forked children have none.

void remember(ProcessGroupFarandole& group);
void forget(ProcessGroupFarandole& group);
/// For a group of `ranks` of the default group, while it forms: throws PeerFailure if the default
/// group knows that one of them has ended, or that one that is absent has left. Empty if no group
/// of this process can know.
comm::WhileForming watch_of_default_group(const std::vector<uint64_t>& ranks);
/// The live group that owns `options`, or null.
ProcessGroupFarandole* owner_of(const c10d::Backend::Options* options);

/// Shuts all live groups down; also called when the process exits, before its statics are
/// destroyed.
FARANDOLE_API void shut_down_all_groups();

}  // namespace farandole
