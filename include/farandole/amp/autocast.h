// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>

#include "farandole/export.h"

namespace farandole {

/// While it lives, LibTorch's operations on tensors of one type of device choose their dtype
/// themselves: matrix products and convolutions run in `dtype`, what needs the range of float32 in
/// float32. torch.autocast for C++.
///
///   farandole::Autocast autocast(torch::kCPU, torch::kBFloat16);
///   const auto loss = loss_of(model(x), y);  // backward belongs behind the guard's end
///
/// Guards nest; each puts back what it found, also when an exception ends it. With the last one the
/// cache of cast parameters is emptied. With `enabled` false it turns autocast off for a while.
///
/// Throws InvalidArgument if autocast knows no such device, or `dtype` is neither float16 nor
/// bfloat16. Threads: the guard works on the thread that made it, and ends there.
class FARANDOLE_API Autocast {
 public:
  /// `dtype`: nullopt: the one that is set for the device, at first bfloat16 on a CPU and float16
  /// elsewhere. `cache_enabled`: whether a parameter is cast once for all its uses, nullopt: as
  /// is set, at first true.
  explicit Autocast(c10::DeviceType device, std::optional<c10::ScalarType> dtype = {},
                    bool enabled = true, std::optional<bool> cache_enabled = {});
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const c10::DeviceType device_;
  const bool enabled_before_;
  const bool cache_enabled_before_;
  const c10::ScalarType dtype_before_;
};

}  // namespace farandole
