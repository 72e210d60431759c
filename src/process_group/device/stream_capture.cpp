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
        forget_error(find<int()>(type, "GetLastError")),
        exchange_mode(find<int(int*)>(type, "ThreadExchangeStreamCaptureMode")) {}

  template <class Function>
  static Function* find(c10::DeviceType type, const char* name) {
    const std::string prefix = c10::DeviceTypeName(type, /*lower_case=*/true);
    return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, (prefix + name).c_str()));
  }

  int (*is_capturing)(void* stream, int* status);
  int (*forget_error)();
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
  constexpr int kCaptureImplicit = 906;  // the legacy stream, while one that waits for it captures
  const Runtime& runtime = runtime_of(stream.device_type());
  if (runtime.is_capturing == nullptr) return false;
  int status = 0;  // cudaStreamCaptureStatusNone
  const int error = runtime.is_capturing(stream.native_handle(), &status);
  if (error == 0) return status != 0;
  if (runtime.forget_error != nullptr) runtime.forget_error();  // torch would find it later
  return error == kCaptureImplicit;
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
