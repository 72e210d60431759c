// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace farandole::sim {

constexpr ncclDataType_t kEveryType[] = {ncclInt8,    ncclUint8,   ncclInt32,   ncclUint32,
                                         ncclInt64,   ncclUint64,  ncclFloat16, ncclFloat32,
                                         ncclFloat64, ncclBfloat16};

/// A two-byte float of `exponent_bits` and `mantissa_bits`, for numbers that it can hold exactly,
/// and that are 0 or not tiny.
inline uint16_t encode_half(double value, int exponent_bits, int mantissa_bits) {
  if (value == 0) return 0;
  int exponent = 0;
  const double fraction = std::frexp(std::abs(value), &exponent);  // in [0.5, 1)
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int mantissa = static_cast<int>(std::ldexp(fraction, mantissa_bits + 1));
  const int sign = value < 0 ? 1 << 15 : 0;
  return static_cast<uint16_t>(sign | ((exponent - 1 + bias) << mantissa_bits) |
                               (mantissa - (1 << mantissa_bits)));
}

/// Appends `value`, which the type holds exactly, to `bytes`.
inline void append(std::vector<char>& bytes, double value, ncclDataType_t dtype) {
  const auto add = [&](auto encoded) {
    const size_t at = bytes.size();
    bytes.resize(at + sizeof encoded);
    std::memcpy(bytes.data() + at, &encoded, sizeof encoded);
  };
  switch (dtype) {
    case ncclInt8:
      return add(static_cast<int8_t>(value));
    case ncclUint8:
      return add(static_cast<uint8_t>(value));
    case ncclInt32:
      return add(static_cast<int32_t>(value));
    case ncclUint32:
      return add(static_cast<uint32_t>(value));
    case ncclInt64:
      return add(static_cast<int64_t>(value));
    case ncclUint64:
      return add(static_cast<uint64_t>(value));
    case ncclFloat16:
      return add(encode_half(value, 5, 10));
    case ncclFloat32:
      return add(static_cast<float>(value));
    case ncclFloat64:
      return add(value);
    default:
      return add(encode_half(value, 8, 7));
  }
}

inline std::vector<char> encode(const std::vector<double>& values, ncclDataType_t dtype) {
  std::vector<char> bytes;
  for (double each : values) append(bytes, each, dtype);
  return bytes;
}

inline bool is_integer(ncclDataType_t dtype) { return dtype <= ncclUint64; }

}  // namespace farandole::sim
