// SPDX-License-Identifier: Apache-2.0
#include "process_group/device/stream_capture.h"

#include <c10/core/DeviceType.h>
#include <dlfcn.h>

#include <string>

namespace farandole {
namespace {

/// The functions of a device's runtime; null where it has none.
struct Runtime {
  explicit Runtime(c10::DeviceType type)
      : is_capturing(find<int(void*, int*)>(type, "StreamIsCapturing")),
        exchange_mode(find<int(int*)>(type, "ThreadExchangeStreamCaptureMode")) {}

  template <class Function>
  static Function* find(c10::DeviceType type, const char* name) {
    const std::string prefix = c10::DeviceTypeName(type, /*lower_case=*/true);
    return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, (prefix + name).c_str()));
  }

  int (*is_capturing)(void* stream, int* status);
  int (*exchange_mode)(int* mode);
};

/// That of a type of which this process has devices.
const Runtime& runtime_of(c10::DeviceType type) {
  if (type == c10::DeviceType::CUDA) {
    static const Runtime cuda(type);
    return cuda;
  }
  static const Runtime other(c10::DeviceType::PrivateUse1);
  return other;
}

}  // namespace

bool is_captured(const c10::Stream& stream) {
  const auto ask = runtime_of(stream.device_type()).is_capturing;
  int status = 0;  // cudaStreamCaptureStatusNone
  return ask != nullptr && ask(stream.native_handle(), &status) == 0 && status != 0;
}

QueriesWhileOthersCapture::QueriesWhileOthersCapture() { exchange_modes(); }

QueriesWhileOthersCapture::~QueriesWhileOthersCapture() { exchange_modes(); }

void QueriesWhileOthersCapture::exchange_modes() {
  for (size_t i = 0; i < modes_.size(); ++i) {
    if (!has_devices(kAccelerators[i])) continue;
    const auto exchange = runtime_of(kAccelerators[i]).exchange_mode;
    if (exchange != nullptr) exchange(&modes_[i]);
  }
}

}  // namespace farandole
