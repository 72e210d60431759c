// SPDX-License-Identifier: Apache-2.0
#include "optim/step/device_rounding.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>

#include <algorithm>

namespace farandole {
namespace {

// 32-bit numbers are in tensors of int64, whose products of 32 and 16 bits do not overflow.
constexpr int64_t kLow32 = 0xffffffff;
/// Elements that are rounded together, which limits the memory for that.
constexpr int64_t kRoundedTogether = int64_t{1} << 22;

at::Tensor times(const at::Tensor& x, int64_t factor) {
  const at::Tensor upper = (x * (factor >> 16)).bitwise_and_(0xffff);
  return (upper * 65536 + x * (factor & 0xffff)).bitwise_and_(kLow32);
}

/// The finalizer of MurmurHash3, as in stochastic_rounding.cpp.
at::Tensor mixed(at::Tensor x) {
  x = times(x.bitwise_xor(x.bitwise_right_shift(16)), 0x85ebca6b);
  x = times(x.bitwise_xor(x.bitwise_right_shift(13)), 0xc2b2ae35);
  return x.bitwise_xor(x.bitwise_right_shift(16));
}

/// 16 bits for each element from `first` on.
at::Tensor random_bits(int64_t first, const at::Tensor& values, const RoundingKey& key) {
  const at::Tensor index =
      at::arange(first, first + values.numel(), values.options().dtype(at::kLong));
  const at::Tensor counter = (index.bitwise_and(kLow32) + int64_t{key.first}).bitwise_and_(kLow32);
  const at::Tensor second = mixed(index.bitwise_right_shift(32)).bitwise_xor_(int64_t{key.second});
  return mixed(mixed(counter).bitwise_xor_(second)).bitwise_right_shift(16);
}

/// The bits of the bfloat16, of one run of values.
at::Tensor rounded_bits(const at::Tensor& values, const at::Tensor& random) {
  const at::Tensor source = values.view(at::kInt).to(at::kLong).bitwise_and_(kLow32);
  const at::Tensor magnitude = source.bitwise_and(0x7fffffff);
  const at::Tensor upper = source.bitwise_right_shift(16);
  const at::Tensor to_nearest = upper.bitwise_and(1) + 0x7fff;
  const at::Tensor added = at::where(magnitude.gt(0x7f7f0000), to_nearest, random);
  const at::Tensor rounded = (source + added).bitwise_and_(kLow32).bitwise_right_shift(16);
  return at::where(magnitude.gt(0x7f800000), upper.bitwise_or(0x40), rounded);
}

}  // namespace

at::Tensor stochastically_rounded(const at::Tensor& values, const StochasticRounding& by) {
  const at::Tensor halves = at::empty_like(values, values.options().dtype(at::kBFloat16));
  for (int64_t begin = 0; begin < values.numel(); begin += kRoundedTogether) {
    const int64_t count = std::min(kRoundedTogether, values.numel() - begin);
    const at::Tensor run = values.narrow(0, begin, count);
    const int64_t first = static_cast<int64_t>(by.first_element) + begin;
    const at::Tensor bits = rounded_bits(run, random_bits(first, run, by.key));
    // From 0 to 65535 to the int16 of these bits.
    halves.narrow(0, begin, count).view(at::kShort).copy_(bits.bitwise_xor(0x8000) - 0x8000);
  }
  return halves;
}

}  // namespace farandole
