// SPDX-License-Identifier: Apache-2.0
#include "farandole/amp/autocast.h"

#include <ATen/autocast_mode.h>

#include <algorithm>

#include "farandole/error.h"

namespace farandole {
namespace {

c10::DeviceType checked(c10::DeviceType device) {
  const auto& known = at::autocast::_AUTOCAST_SUPPORTED_DEVICES;
  if (std::find(known.begin(), known.end(), device) != known.end()) return device;
  throw InvalidArgument(
      "autocast-device", "Autocast got device type '" + c10::DeviceTypeName(device, true) + "'.",
      "LibTorch has no autocast for this device.", "pass torch::kCPU or torch::kCUDA.");
}

c10::ScalarType checked(c10::ScalarType dtype) {
  if (c10::isReducedFloatingType(dtype) && c10::elementSize(dtype) == 2) return dtype;
  throw InvalidArgument("autocast-dtype",
                        std::string("Autocast got dtype ") + c10::toString(dtype) + ".",
                        "under autocast, operations run in float16 or bfloat16.",
                        "pass torch::kBFloat16 or torch::kHalf; to turn autocast off, pass "
                        "enabled=false.");
}

}  // namespace

Autocast::Autocast(c10::DeviceType device, std::optional<c10::ScalarType> dtype, bool enabled,
                   std::optional<bool> cache_enabled)
    : device_(checked(device)),
      enabled_before_(at::autocast::is_autocast_enabled(device)),
      cache_enabled_before_(at::autocast::is_autocast_cache_enabled()),
      dtype_before_(at::autocast::get_autocast_dtype(device)) {
  if (dtype) at::autocast::set_autocast_dtype(device, checked(*dtype));
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::set_autocast_cache_enabled(cache_enabled.value_or(cache_enabled_before_));
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_cache_enabled(cache_enabled_before_);
  at::autocast::set_autocast_dtype(device_, dtype_before_);
  at::autocast::set_autocast_enabled(device_, enabled_before_);
}

}  // namespace farandole
