// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "farandole/export.h"

namespace farandole {

/// Whether no element of `tensor` is NaN or Inf: any dtype, strides, layout and device; nor, of a
/// strided one in host memory, a sum of `terms` as large (kernels/finite_kernels.h). Waits for the
/// device's stream. Any thread.
FARANDOLE_API bool is_finite(const at::Tensor& tensor, size_t terms = 1);

}  // namespace farandole
