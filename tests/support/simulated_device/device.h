// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "support/simulated_device/stream.h"

namespace farandole::sim {

/// The devices of a process: sim:0 to sim:3. All functions may be called by any thread. Arguments
/// `device` must be in range.
constexpr int kDeviceCount = 4;

/// That of the calling thread; 0 at first.
int current_device();
void set_current_device(int device);

/// Streams live as long as the process. 0 is the default stream of the device.
Stream& stream(int device, int64_t id);
Stream& new_stream(int device);
/// All that there are.
std::vector<Stream*> streams_of(int device);

/// Waits for all streams of the device. Throws CaptureError if one is captured.
void synchronize_device(int device);

/// Makes the device fail from now on, as a GPU does after an illegal access. The first reason
/// stays.
void fail_device(int device, const std::string& reason);
/// Makes a failed device usable again.
void reset_device(int device);
bool has_failed(int device);
/// Throws DeviceError if the device has failed.
void check_device(int device);

}  // namespace farandole::sim
