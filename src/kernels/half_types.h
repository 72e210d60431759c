// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/target_clones.h"

namespace farandole::comm {

// Plain integer arithmetic without branches, so that compilers turn loops of it into SIMD for every
// instruction set. All conversions to a half type round to nearest, ties to even (IEEE
// 754-2019, 4.3.1).

FARANDOLE_INLINE float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

FARANDOLE_INLINE uint32_t bits_of_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

/// bfloat16: the upper half of a float32.
struct BFloat16 {
  uint16_t bits;

  FARANDOLE_INLINE explicit operator float() const {
    return float_of_bits(static_cast<uint32_t>(bits) << 16);
  }

  static FARANDOLE_INLINE BFloat16 from(float value) {
    const uint32_t source = bits_of_float(value);
    const uint32_t rounded = (source + 0x7fffU + ((source >> 16) & 1U)) >> 16;
    const uint32_t quiet_nan = (source >> 16) | 0x40U;
    const bool is_nan = (source & 0x7fffffffU) > 0x7f800000U;
    return {static_cast<uint16_t>(is_nan ? quiet_nan : rounded)};
  }
};

/// IEEE binary16: 1 sign, 5 exponent (bias 15), 10 mantissa bits.
struct Float16 {
  uint16_t bits;

  FARANDOLE_INLINE explicit operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
    const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffU) << 13;
    // Exponents keep their offset: a multiplication by 2^112 rebases the bias and normalizes
    // subnormals in one step.
    const float scaled = float_of_bits(magnitude) * float_of_bits((127U + 112U) << 23);
    const uint32_t infinite_or_nan = magnitude | 0x7f800000U;
    const bool is_special = magnitude >= (0x7c00U << 13);
    return float_of_bits(sign | (is_special ? infinite_or_nan : bits_of_float(scaled)));
  }

  static FARANDOLE_INLINE Float16 from(float value) {
    const uint32_t source = bits_of_float(value);
    const uint32_t sign = (source >> 16) & 0x8000U;
    const uint32_t magnitude = source & 0x7fffffffU;
    // Normal halves: rebase the exponent by 127 - 15, then round away the lower 13 bits.
    const uint32_t normal = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    // Subnormal halves: adding 0.5 leaves the rounded value in the lowest mantissa bits.
    const uint32_t subnormal = bits_of_float(float_of_bits(magnitude) + 0.5F) - bits_of_float(0.5F);
    const uint32_t nan = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
    uint32_t half = magnitude < (113U << 23) ? subnormal : normal;
    half = magnitude >= 0x477ff000U ? 0x7c00U : half;  // 65520 and more round to infinity
    half = magnitude > 0x7f800000U ? nan : half;
    return {static_cast<uint16_t>(sign | half)};
  }
};

}  // namespace farandole::comm
