// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "farandole/export.h"

namespace farandole {

/// Whether `tensor` is the only reference to its values: no other tensor, view or storage leads to
/// them, in C++ or Python, but for the base of a view that the view alone keeps. A clone that
/// copies on write does not count; see owns_lent_memory().
///
/// Threads: any, for a tensor that the caller may write to.
FARANDOLE_API bool has_sole_holder(const at::Tensor& tensor);

}  // namespace farandole
