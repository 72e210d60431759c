// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "farandole/comm/types.h"
#include "farandole/export.h"

namespace farandole {

/// master[i] = halves[i] where halves[i] is not master[i] rounded: there somebody else has set it.
/// `dtype` is kFloat16 or kBFloat16. Any thread.
FARANDOLE_API void refresh_masters(const uint16_t* halves, float* master, size_t count,
                                   comm::DataType dtype);

}  // namespace farandole
