// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "farandole/comm/types.h"
#include "farandole/export.h"

namespace farandole {

/// target[i] = scale * source[i], or with `accumulate` target[i] += scale * source[i]; `source` may
/// be `target`, but not overlap it otherwise. float64 on either side: computed in float64, else in
/// float32, each product and sum rounded on its own, so that every CPU gets the same bits.
/// Returns false if the loop looks for NaN and Inf and has stored one.
///
/// Both aligned to their elements. Any thread.
using MoveKernel = bool (*)(const void* source, void* target, size_t count, double scale);

/// nullptr unless both are of kFloat64, kFloat32, kFloat16 and kBFloat16.
FARANDOLE_API MoveKernel move_kernel(comm::DataType source, comm::DataType target, bool accumulate,
                                     bool check_finite);

}  // namespace farandole
