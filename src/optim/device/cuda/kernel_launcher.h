// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

namespace farandole {

/// What the plug-in libfarandole_cuda.so gives to run the kernels of update_kernels.cu on a GPU.
struct KernelLauncher {
  const char* version;  ///< of the Farandole that it was built with
  /// Why the GPU `device` cannot run them, or that it was built without nvcc, a sentence; empty if
  /// it can. Any thread.
  std::string (*obstacle)(int device);
  /// Puts the kernel `name` with these arguments, which are copied, on the cudaStream_t `stream` of
  /// the GPU, in `blocks` blocks of `threads` threads. Throws SystemError. Any thread.
  void (*launch)(int device, const char* name, const void* arguments, int blocks, int threads,
                 void* stream);
};

/// The symbol that the plug-in exports for it, an extern "C" function that returns const
/// KernelLauncher*.
constexpr const char* kKernelsSymbol = "farandole_cuda_kernels";

}  // namespace farandole
