// SPDX-License-Identifier: Apache-2.0
#include "farandole/comm/symmetric_memory.h"

namespace farandole::comm {

SymmetricMemory::~SymmetricMemory() = default;

}  // namespace farandole::comm
