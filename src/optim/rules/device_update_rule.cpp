// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/device_update_rule.h"

#include "optim/device/rule_formulas.h"

namespace farandole {

DeviceUpdateRule::~DeviceUpdateRule() = default;

std::vector<std::vector<at::Tensor>> DeviceUpdateRule::measure_on_device(
    const DeviceUpdate& /*pieces*/) const {
  return {};
}

std::shared_ptr<const RuleFormulas> DeviceUpdateRule::formulas(
    const StepContext& /*context*/) const {
  return nullptr;
}

}  // namespace farandole
