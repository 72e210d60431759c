// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
#include <c10/core/Stream.h>

#include "support/simulated_device/stream.h"

namespace farandole::sim {

/// torch's type of simulated devices, whose name is "sim" once this library is loaded.
constexpr c10::DeviceType kSim = c10::DeviceType::PrivateUse1;

/// The stream on which the calling thread's operations on a device run; its default stream at
/// first. Throws if there is no such device.
Stream& current_stream(c10::DeviceIndex device);
Stream& stream_of(const c10::Stream& stream);

}  // namespace farandole::sim
