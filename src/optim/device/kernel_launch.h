// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <string>

#include "farandole/export.h"

namespace farandole {

// The kernels of optim/device/kernels.h on CUDA, and on any device for which the operator
// farandole::launch_kernel(str name, int arguments, int bytes, int blocks) -> () is registered with
// torch (the address and size of the arguments, to be copied); tests register one. Any thread.

/// Why `device` does not run them, a sentence; empty if it does.
FARANDOLE_API std::string obstacle_to_kernels(c10::Device device);
/// Puts a kernel on the current stream of `device`, which is the current device. The arguments are
/// copied. Throws SystemError.
void launch_kernel(c10::Device device, const std::string& name, const void* arguments, size_t bytes,
                   int blocks);

}  // namespace farandole
