// SPDX-License-Identifier: Apache-2.0
#include "process_group/device/accelerators.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>

namespace farandole {

bool can_serve(c10::DeviceType type) {
  return std::find(std::begin(kAccelerators), std::end(kAccelerators), type) !=
         std::end(kAccelerators);
}

bool has_devices(c10::DeviceType type) {
  return c10::impl::hasDeviceGuardImpl(type) &&
         c10::impl::getDeviceGuardImpl(type)->deviceCount() > 0;
}

bool has_accelerator() {
  return std::any_of(std::begin(kAccelerators), std::end(kAccelerators), has_devices);
}

}  // namespace farandole
