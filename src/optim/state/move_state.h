// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "optim/shards/shard_layout.h"
#include "optim/shards/shard_ranks.h"

namespace farandole {

// State from a former plan to the present one, in a rebuild. Threads: one call at a time.

/// Makes arrays of zeros for what a part of the former plan has, in the present one. Local.
void make_arrays_of(const ShardLayout::Part& old, ShardLayout& layout);

/// Moves the arrays of a part of the former plan to the ranks that own their elements now, one
/// array at a time. Collective.
void move_state(const ShardLayout::Part& old, const ShardRanks& ranks, ShardLayout& layout);

}  // namespace farandole
