// SPDX-License-Identifier: Apache-2.0
#include "farandole/comm/shared_memory.h"

namespace farandole::comm {

SharedMemory::~SharedMemory() = default;
SymmetricMemory::~SymmetricMemory() = default;
Signals::~Signals() = default;
BucketReduction::~BucketReduction() = default;

}  // namespace farandole::comm
