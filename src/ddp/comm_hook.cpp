// SPDX-License-Identifier: Apache-2.0
#include "farandole/ddp/comm_hook.h"

#include <ATen/core/ivalue.h>

namespace farandole {

CommHook::~CommHook() = default;

void CommHook::begin_plan() {}

at::Tensor CommHook::parseHookResult(const c10::IValue& result) {
  if (result.isTensor()) return result.toTensor();
  return result.toTensorVector().at(0);
}

}  // namespace farandole
