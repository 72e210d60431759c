// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/DeviceType.h>

namespace farandole {

/// The types of devices whose tensors a group can serve through a DeviceLane. PrivateUse1 is that
/// of other vendors, and the simulated device of the tests.
constexpr c10::DeviceType kAccelerators[] = {c10::DeviceType::CUDA, c10::DeviceType::PrivateUse1};

// All functions: any thread.

/// Whether groups can serve tensors on devices of `type`, besides those on the CPU.
bool can_serve(c10::DeviceType type);
/// Whether this process has a device of `type`.
bool has_devices(c10::DeviceType type);
/// Whether this process has a device that groups can serve.
bool has_accelerator();

}  // namespace farandole
