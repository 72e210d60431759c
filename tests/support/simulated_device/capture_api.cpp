// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_device/capture.h"
#include "support/simulated_device/stream.h"

extern "C" int simStreamIsCapturing(void* stream, int* status) {
  *status = static_cast<int>(static_cast<farandole::sim::Stream*>(stream)->capture_status());
  return 0;
}

extern "C" int simThreadExchangeStreamCaptureMode(int* mode) {
  using farandole::sim::CaptureMode;
  *mode = static_cast<int>(farandole::sim::exchange_capture_mode(static_cast<CaptureMode>(*mode)));
  return 0;
}
