// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>

#include "farandole/comm/fingerprint.h"
#include "farandole/ddp/replica_group.h"

namespace farandole {

/// The lowest rank whose fingerprint is another one than that of rank 0; the same on all ranks.
/// Collective.
std::optional<size_t> find_rank_that_differs(const ReplicaGroup& group,
                                             const comm::Fingerprint& own);

}  // namespace farandole
