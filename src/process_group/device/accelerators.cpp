// SPDX-License-Identifier: Apache-2.0
#include "process_group/device/accelerators.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>

#include "farandole/comm/backends.h"

namespace farandole {

bool can_serve(c10::DeviceType type) {
  static const bool is_built = !comm::backend_for(comm::MemoryKind::kDevice).empty();
  return is_built && std::find(std::begin(kAccelerators), std::end(kAccelerators), type) !=
                         std::end(kAccelerators);
}

bool has_accelerator() {
  return std::any_of(std::begin(kAccelerators), std::end(kAccelerators), [](c10::DeviceType type) {
    return can_serve(type) && c10::impl::hasDeviceGuardImpl(type) &&
           c10::impl::getDeviceGuardImpl(type)->deviceCount() > 0;
  });
}

}  // namespace farandole
