// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/target_clones.h"

namespace farandole {

/// The sum of squares in float64: element i is added to lane i % 16, the lanes in pairs at the end.
/// So a loop may have vectors of any width up to 16 and gets the same bits. The square of a float32
/// is exact in float64.
template <class T>
FARANDOLE_INLINE double sum_of_squares(const T* values, int64_t elements) {
  constexpr int64_t kLanes = 16;
  double lanes[kLanes] = {};
  int64_t first = 0;
  for (; first + kLanes <= elements; first += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(values[first + lane]);
      lanes[lane] += value * value;
    }
  }
  for (int64_t lane = 0; first + lane < elements; ++lane) {
    const auto value = static_cast<double>(values[first + lane]);
    lanes[lane] += value * value;
  }
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

}  // namespace farandole
