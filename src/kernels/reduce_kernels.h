// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "farandole/comm/types.h"
#include "farandole/export.h"

namespace farandole::comm {

/// Read-only views of the same elements on several ranks, in rank order.
struct Sources {
  const void* const* buffers;
  size_t size;  ///< at least 1
};

/// Where the result goes; one buffer or several.
struct Destinations {
  void* const* buffers;
  size_t size;  ///< at least 1
};

/// destination[d][i] = sources[0][i] op sources[1][i] op ... for i < count and every d, combined
/// from left to right, half types in float32, kAvg divided by the number of sources. A destination
/// may be one of the sources. Buffers may lie at any address. Bytes moved: (sources + destinations)
/// * count * size_of(dtype).
///
/// Pure, any thread. Throws InvalidArgument for a reduction that the dtype does not have (AVG of
/// bool).
FARANDOLE_API void reduce(Sources sources, Destinations destinations, size_t count, DataType dtype,
                          ReduceOp op);

/// As reduce() with kSum, but divided by `divisor` > 0 before half types are rounded; the number of
/// sources gives kAvg's bits. Pure, any thread; `dtype` is floating.
FARANDOLE_API void average(Sources sources, Destinations destinations, size_t count, DataType dtype,
                           double divisor);

/// Whether average() takes it.
FARANDOLE_API bool is_floating(DataType dtype);

/// Throws InvalidArgument as reduce() would.
FARANDOLE_API void check_reduction(DataType dtype, ReduceOp op);

}  // namespace farandole::comm
