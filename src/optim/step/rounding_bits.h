// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/half_types.h"
#include "kernels/target_clones.h"

namespace farandole {

/// The finalizer of MurmurHash3 for 32 bits.
FARANDOLE_INLINE uint32_t mix_bits(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bU;
  x = (x ^ (x >> 13)) * 0xc2b2ae35U;
  return x ^ (x >> 16);
}

/// The bfloat16 of a float32, rounded as stochastic_rounding.h says. `counter`: the lower 32 bits
/// of the element's index + key.first; `second`: key.second ^ mix_bits(upper 32 bits). All selects
/// have 32 bits, because otherwise GCC 12 does not vectorize loops of it.
FARANDOLE_INLINE uint16_t stochastic_bfloat16(float value, uint32_t counter, uint32_t second) {
  constexpr uint32_t kLargestBFloat16 = 0x7f7f0000;  // as a float32
  constexpr uint32_t kInfinity = 0x7f800000;
  const uint32_t random = mix_bits(mix_bits(counter) ^ second) >> 16;
  const uint32_t source = comm::bits_of_float(value);
  const uint32_t magnitude = source & 0x7fffffffU;
  const uint32_t to_nearest = 0x7fffU + ((source >> 16) & 1U);
  const uint32_t added = magnitude > kLargestBFloat16 ? to_nearest : random;
  const uint32_t rounded = (source + added) >> 16;
  const uint32_t quiet_nan = (source >> 16) | 0x40U;
  return static_cast<uint16_t>(magnitude > kInfinity ? quiet_nan : rounded);
}

}  // namespace farandole
