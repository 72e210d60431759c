// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "farandole/ddp/replica_group.h"

namespace farandole {

/// Calls `change` on every rank of `group`. If it fails on a rank, all ranks call `undo`, which
/// must not throw, and then throw: the rank on which it failed its own exception, the others a
/// StepError with the rank and its error. `call`: the name of the program's call. Collective.
void change_together(const ReplicaGroup& group, const std::string& call,
                     const std::function<void()>& change, const std::function<void()>& undo);

}  // namespace farandole
