// SPDX-License-Identifier: Apache-2.0
#include "process_group/device/stream_capture.h"

#include <dlfcn.h>

namespace farandole {
namespace {

/// The function `name` of the CUDA runtime; null without one.
template <class Function>
Function* find(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

}  // namespace

bool is_captured(const c10::Stream& stream) {
  if (stream.device_type() != c10::DeviceType::CUDA) return false;
  static const auto ask = find<int(void*, int*)>("cudaStreamIsCapturing");
  int status = 0;  // cudaStreamCaptureStatusNone
  return ask != nullptr && ask(stream.native_handle(), &status) == 0 && status != 0;
}

void allow_queries_while_others_capture() {
  static const auto exchange = find<int(int*)>("cudaThreadExchangeStreamCaptureMode");
  int mode = 1;  // cudaStreamCaptureModeThreadLocal
  if (exchange != nullptr) exchange(&mode);
}

}  // namespace farandole
