// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "farandole/export.h"

namespace farandole {

/// Multiplies gradients by `factor` in place, undefined ones excepted, and returns whether all
/// elements are finite then. One pass over memory, on torch's threads; on an
/// accelerator on its current stream, for which the host waits once. Sparse gradients: their
/// values, those of float16 coalesced first, which may be another tensor in p.grad. Throws
/// InvalidArgument for dtypes other than float64, float32, float16, bfloat16 and complex ones.
FARANDOLE_API bool unscale_gradients(const std::vector<at::Tensor>& parameters, double factor);

}  // namespace farandole
