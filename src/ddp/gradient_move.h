// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "farandole/export.h"

namespace farandole {

/// How a gradient goes into its bucket.
struct GradientMove {
  double scale = 1;           ///< factor on the gradient, not on what is in the bucket
  bool accumulate = false;    ///< add to what is in the bucket, instead of replacing it
  bool check_finite = false;  ///< look for NaN and Inf in what was stored
};

/// slot = scale * gradient, or slot += scale * gradient: any strides on both sides, cast to the
/// dtype of `slot`, half types computed in float32. In one pass over memory where the strides are
/// equal, as they are between a parameter and its gradient; else gradients of the CPU are laid out
/// so first. Equal shapes; `slot` does not overlap itself. `gradient` may be `slot`.
/// Returns false if check_finite found an element that is not finite.
///
/// On the calling thread (CPU), or on the current stream of the tensors' device, where a finite
/// check waits for the stream. Any thread.
FARANDOLE_API bool move_gradient(const at::Tensor& gradient, const at::Tensor& slot,
                                 const GradientMove& how);

}  // namespace farandole
