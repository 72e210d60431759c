// SPDX-License-Identifier: Apache-2.0
#include "optim/device/kernel_launch.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdint>

#include "comm/plugin_library.h"
#include "optim/device/cuda/kernel_launcher.h"
#include "optim/device/kernel_arguments.h"

namespace farandole {
namespace {

TORCH_LIBRARY(farandole, m) {
  m.def("launch_kernel(str name, int arguments, int bytes, int blocks) -> ()");
}

const c10::OperatorHandle& launch_operator() {
  static const c10::OperatorHandle found =
      c10::Dispatcher::singleton().findSchemaOrThrow("farandole::launch_kernel", "");
  return found;
}

c10::DispatchKey key_of(c10::Device device) {
  return at::TensorOptions(device).computeDispatchKey();
}

/// Of the plug-in, or why there is none, a sentence.
struct Launcher {
  const KernelLauncher* of_plugin = nullptr;
  std::string obstacle;

  static const Launcher& get() {
    static const Launcher found;
    return found;
  }

 private:
  struct Missing {
    std::string why;
  };
  Launcher() {
    try {
      of_plugin = static_cast<const KernelLauncher*>(
          comm::open_plugin(comm::path_beside_this_library("libfarandole_cuda.so"), kKernelsSymbol,
                            [](const std::string& why) { throw Missing{why}; }));
    } catch (const Missing& missing) {
      obstacle = missing.why;
    }
  }
};

}  // namespace

std::string obstacle_to_kernels(c10::Device device) {
  if (device.is_cuda()) {
    const Launcher& launcher = Launcher::get();
    return launcher.of_plugin != nullptr ? launcher.of_plugin->obstacle(device.index())
                                         : launcher.obstacle;
  }
  if (launch_operator().hasKernelForDispatchKey(key_of(device))) return {};
  return "they are there for CUDA alone.";
}

void launch_kernel(c10::Device device, const std::string& name, const void* arguments, size_t bytes,
                   int blocks) {
  if (device.is_cuda()) {
    const c10::Stream stream = c10::impl::getDeviceGuardImpl(device.type())->getStream(device);
    Launcher::get().of_plugin->launch(device.index(), name.c_str(), arguments, blocks,
                                      kKernelThreads, stream.native_handle());
    return;
  }
  torch::jit::Stack stack{name, static_cast<int64_t>(reinterpret_cast<intptr_t>(arguments)),
                          static_cast<int64_t>(bytes), int64_t{blocks}};
  launch_operator().callBoxedForDispatchKey(key_of(device), stack);
}

}  // namespace farandole
