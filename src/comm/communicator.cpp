// SPDX-License-Identifier: Apache-2.0
#include "farandole/comm/communicator.h"

namespace farandole::comm {

Communicator::~Communicator() = default;
Transfer::~Transfer() = default;

}  // namespace farandole::comm
