// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "farandole/ddp/replica_group.h"

namespace farandole {

/// Calls `change` on every rank of `group`. If it fails on one, all call `undo`, which does not
/// throw, and throw: a rank on which it failed what it met there, the others a StepError that names
/// the rank and tells its error. `call`: what the program has called. Collective.
void change_together(const ReplicaGroup& group, const std::string& call,
                     const std::function<void()>& change, const std::function<void()>& undo);

}  // namespace farandole
