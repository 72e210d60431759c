// SPDX-License-Identifier: Apache-2.0
#include "process_group/message_device.h"

#include <algorithm>

namespace farandole {

c10::Device message_device(c10d::ProcessGroup& group) {
  const auto types = group.getDeviceTypes();
  const bool serves_cpu = std::count(types.begin(), types.end(), c10::DeviceType::CPU) != 0;
  return serves_cpu || types.empty() ? c10::Device(c10::kCPU) : c10::Device(types.front());
}

}  // namespace farandole
