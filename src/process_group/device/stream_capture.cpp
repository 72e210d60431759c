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

/// Gives the calling thread `mode` of cudaStreamCaptureMode, and `mode` the one before.
void exchange_mode(int& mode) {
  static const auto exchange = find<int(int*)>("cudaThreadExchangeStreamCaptureMode");
  if (exchange != nullptr) exchange(&mode);
}

}  // namespace

bool is_captured(const c10::Stream& stream) {
  if (stream.device_type() != c10::DeviceType::CUDA) return false;
  static const auto ask = find<int(void*, int*)>("cudaStreamIsCapturing");
  int status = 0;  // cudaStreamCaptureStatusNone
  return ask != nullptr && ask(stream.native_handle(), &status) == 0 && status != 0;
}

QueriesWhileOthersCapture::QueriesWhileOthersCapture() { exchange_mode(mode_); }

QueriesWhileOthersCapture::~QueriesWhileOthersCapture() { exchange_mode(mode_); }

}  // namespace farandole
