// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "farandole/export.h"

namespace farandole {

/// Makes the columns of `matrix` (few, in float32 or float64) orthonormal, by Gram-Schmidt from the
/// first to the last. Twice is enough for columns that are independent (Giraud et al., The loss of
/// orthogonality in the Gram-Schmidt orthogonalization process, 2005). Gradients may have fewer
/// such columns than asked for; of others one projection leaves rounding noise, which two more make
/// orthogonal to the columns before. Columns of zeros stay, NaN and Inf spread. `epsilon` is added
/// to the norms.
FARANDOLE_API void orthonormalize(const at::Tensor& matrix, double epsilon);

}  // namespace farandole
