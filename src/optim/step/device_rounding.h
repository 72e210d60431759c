// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "farandole/export.h"
#include "optim/step/stochastic_rounding.h"

namespace farandole {

/// What round_stochastically() makes of `values`, float32 of one dimension, in operations of torch
/// on their device: the same bits, as bfloat16. Any thread.
FARANDOLE_API at::Tensor stochastically_rounded(const at::Tensor& values,
                                                const StochasticRounding& by);

}  // namespace farandole
