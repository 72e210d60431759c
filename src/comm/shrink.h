// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "farandole/comm/backends.h"
#include "farandole/comm/communicator.h"
#include "farandole/export.h"

namespace farandole::comm {

/// What the group of the ranks of `group` that are not `excluded` is made of, where `options` are
/// those of `group`. Throws InvalidArgument if this rank is excluded.
FARANDOLE_API CommunicatorOptions options_of_shrunk(const Communicator& group,
                                                    CommunicatorOptions options,
                                                    const std::vector<int>& excluded);

}  // namespace farandole::comm
