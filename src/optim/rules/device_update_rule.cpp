// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/device_update_rule.h"

namespace farandole {

DeviceUpdateRule::~DeviceUpdateRule() = default;

std::vector<std::vector<at::Tensor>> DeviceUpdateRule::measure_on_device(
    const DeviceUpdate& /*pieces*/) const {
  return {};
}

}  // namespace farandole
