// SPDX-License-Identifier: Apache-2.0
// Autocast for simulated devices, with CUDA's lists of operators.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

// The macros name functions of this namespace.
namespace at::autocast {
namespace {

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

#define FARANDOLE_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FARANDOLE_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define FARANDOLE_SET_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define FARANDOLE_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(FARANDOLE_LOWER)
  AT_FORALL_FP32(FARANDOLE_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(FARANDOLE_SET_FP32)
  AT_FORALL_PROMOTE(FARANDOLE_PROMOTE)
}

}  // namespace
}  // namespace at::autocast
