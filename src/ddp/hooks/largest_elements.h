// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "farandole/export.h"

namespace farandole {

/// The indices (int64, in no order) of the `k` elements of `values`, of one dimension, that are
/// largest in magnitude, NaN above all. In two passes for contiguous float32 on the CPU, where the
/// first of equals are taken; elsewhere by torch's topk, which is far slower. Any thread.
FARANDOLE_API at::Tensor largest_elements(const at::Tensor& values, int64_t k);

}  // namespace farandole
