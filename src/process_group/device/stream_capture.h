// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Stream.h>

#include <array>
#include <iterator>

#include "process_group/device/accelerators.h"

namespace farandole {

// Capture of a stream into a graph. torch 2.11 has no function for it that serves all devices, so
// these ask the runtime that torch has loaded, by name: cudaStreamIsCapturing, or the function of
// that meaning of another vendor, with the name that torch has for the device in place of "cuda".
// Devices without such functions never capture.

/// Whether what is put on `stream` is recorded into a graph, and does not run. Any thread.
bool is_captured(const c10::Stream& stream);

/// Lets the calling thread query events and allocate while other threads capture, until the end of
/// the scope, in which it must not begin a capture.
class QueriesWhileOthersCapture {
 public:
  QueriesWhileOthersCapture();
  ~QueriesWhileOthersCapture();
  QueriesWhileOthersCapture(const QueriesWhileOthersCapture&) = delete;
  QueriesWhileOthersCapture& operator=(const QueriesWhileOthersCapture&) = delete;

 private:
  void exchange_modes();

  /// By accelerator: cudaStreamCaptureModeThreadLocal, then that of the thread before.
  std::array<int, std::size(kAccelerators)> modes_{1, 1};
};

}  // namespace farandole
