// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Stream.h>

namespace farandole {

// Capture of a stream into a CUDA graph. torch has no function for it that serves all devices, so
// these ask the CUDA runtime that torch has loaded, by name. Other devices never capture.

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
  int mode_ = 1;  ///< cudaStreamCaptureModeThreadLocal, then that of the thread before
};

}  // namespace farandole
