// SPDX-License-Identifier: Apache-2.0
// In place of cuda_kernels.cpp where there is no nvcc.
#include "farandole/export.h"
#include "farandole/version.h"
#include "optim/device/cuda/kernel_launcher.h"

extern "C" FARANDOLE_API const void* farandole_cuda_kernels() {
  static const farandole::KernelLauncher launcher{
      farandole::version(),
      [](int /*device*/) {
        return std::string("Farandole was built where no nvcc of CUDA 12.8 or newer was found.");
      },
      nullptr};
  return &launcher;
}
