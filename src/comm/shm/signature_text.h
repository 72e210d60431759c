// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "comm/shm/control_block.h"
#include "farandole/export.h"

namespace farandole::comm::shm {

/// A call as its user wrote it: "all_reduce(float32[1024], SUM)", "broadcast(int64[3], root=0)".
FARANDOLE_API std::string text_of(const Signature& signature);

}  // namespace farandole::comm::shm
