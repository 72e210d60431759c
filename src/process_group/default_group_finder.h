// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "farandole/process_group/init.h"

namespace farandole {

/// Finds the default group of torch.distributed, which keeps its own books; the empty pointer if
/// there is none.
using DefaultGroupFinder = Group (*)();

/// Without a finder (no Python) that group is looked for by the name that it mostly has. Call it
/// before other threads ask for groups.
FARANDOLE_API void set_default_group_finder(DefaultGroupFinder finder);

}  // namespace farandole
