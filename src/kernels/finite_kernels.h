// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "farandole/comm/types.h"
#include "farandole/export.h"

namespace farandole::comm {

/// Whether none of `count` elements is NaN or Inf, and a sum of `terms` as large as any of them
/// would not be either, taken as reductions take it: float64 in float64, all else in float32. One
/// pass that only reads. dtype: kFloat64, kFloat32, kFloat16 or kBFloat16. Any thread.
FARANDOLE_API bool are_finite(const void* data, size_t count, DataType dtype, size_t terms = 1);

}  // namespace farandole::comm
