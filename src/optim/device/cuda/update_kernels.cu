// SPDX-License-Identifier: Apache-2.0
// The kernels of optim/device/kernels.h for GPUs. cuda_kernels.cpp loads and launches them.
#include "optim/device/kernels.h"

using namespace farandole;  // kernels are found by their plain names

namespace {

/// Adds up what the threads of a block have, in pairs, always in the same order, to `to`.
__device__ void add_up(double (&sums)[kKernelSums][kKernelThreads], double* to) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int half = kKernelThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread >= half) continue;
    for (size_t sum = 0; sum < kKernelSums; ++sum) {
      sums[sum][thread] += sums[sum][thread + half];
    }
  }
  __syncthreads();
  if (thread < static_cast<int>(kKernelSums)) to[thread] = sums[thread][0];
}

}  // namespace

#define FARANDOLE_UPDATE(Rule, Type)                                                             \
  extern "C" __global__ void __launch_bounds__(kKernelThreads) farandole_update_##Rule##_##Type( \
      const __grid_constant__ KernelArguments<Rule##Formula<Type>> arguments) {                  \
    update_elements(arguments, static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x));     \
  }
FARANDOLE_UPDATE_KERNELS(FARANDOLE_UPDATE)

#define FARANDOLE_MEASURE(Rule, Type)                                                              \
  extern "C" __global__ void __launch_bounds__(kKernelThreads) farandole_measure_##Rule##_##Type(  \
      const __grid_constant__ KernelArguments<Rule##Formula<Type>> arguments) {                    \
    __shared__ double sums[kKernelSums][kKernelThreads];                                           \
    double own[kKernelSums] = {};                                                                  \
    measure_elements(arguments, static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x), own); \
    for (size_t sum = 0; sum < kKernelSums; ++sum) sums[sum][threadIdx.x] = own[sum];              \
    add_up(sums, arguments.table.partial_sums + blockIdx.x * kKernelSums);                         \
  }
FARANDOLE_MEASURE_KERNELS(FARANDOLE_MEASURE)

extern "C" __global__ void __launch_bounds__(kKernelThreads)
    farandole_add_sums(const __grid_constant__ KernelTable table) {
  __shared__ double sums[kKernelSums][kKernelThreads];
  double own[kKernelSums] = {};
  add_partial_sums(table, static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x), own);
  for (size_t sum = 0; sum < kKernelSums; ++sum) sums[sum][threadIdx.x] = own[sum];
  add_up(sums, table.piece[blockIdx.x].sums);
}
