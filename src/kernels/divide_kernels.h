// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "farandole/comm/types.h"
#include "farandole/export.h"

namespace farandole::comm {

/// Divides each of `count` integers by `divisor` > 0 towards zero, as kAvg does with sums. `values`
/// may lie at any address. Pure, any thread.
FARANDOLE_API void divide(void* values, size_t count, DataType dtype, int divisor);

}  // namespace farandole::comm
