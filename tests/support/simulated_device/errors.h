// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

namespace farandole::sim {

/// A kernel failed, memory ran out, or a forked child used the devices of its parent. As on a GPU,
/// the failure of a kernel is thrown by later calls that concern the device.
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Two operations touch the same memory, and nothing orders them.
struct RaceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A call that the capture of a stream does not allow, or that belongs to a capture in which there
/// was one. The text has CUDA's name of the error.
struct CaptureError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace farandole::sim
