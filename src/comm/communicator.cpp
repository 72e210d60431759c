// SPDX-License-Identifier: Apache-2.0
#include "farandole/comm/communicator.h"

#include "farandole/comm/device_communicator.h"

namespace farandole::comm {

Communicator::~Communicator() = default;
Transfer::~Transfer() = default;
DeviceMemory::~DeviceMemory() = default;

}  // namespace farandole::comm
