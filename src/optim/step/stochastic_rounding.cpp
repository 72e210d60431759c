// SPDX-License-Identifier: Apache-2.0
#include "optim/step/stochastic_rounding.h"

#include <algorithm>

#include "kernels/half_types.h"
#include "kernels/target_clones.h"

namespace farandole {
namespace {

// The value as a float32.
constexpr uint32_t kLargestBFloat16 = 0x7f7f0000;
constexpr uint32_t kInfinity = 0x7f800000;

/// The finalizer of MurmurHash3 for 32 bits.
FARANDOLE_INLINE uint32_t mix(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bU;
  x = (x ^ (x >> 13)) * 0xc2b2ae35U;
  return x ^ (x >> 16);
}

/// A step of SplitMix64 (Steele, Lea and Flood 2014).
uint64_t mix_wide(uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

/// `counter`: of the first element; it does not overflow 32 bits. All selects have 32 bits, because
/// otherwise GCC 12 does not vectorize the loop.
FARANDOLE_CLONES void round_run(const float* values, uint16_t* halves, size_t count,
                                uint32_t counter, uint32_t second) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    const uint32_t random = mix(mix(counter + static_cast<uint32_t>(i)) ^ second) >> 16;
    const uint32_t source = comm::bits_of_float(values[i]);
    const uint32_t magnitude = source & 0x7fffffffU;
    const uint32_t to_nearest = 0x7fffU + ((source >> 16) & 1U);
    const uint32_t added = magnitude > kLargestBFloat16 ? to_nearest : random;
    const uint32_t rounded = (source + added) >> 16;
    const uint32_t quiet_nan = (source >> 16) | 0x40U;
    halves[i] = static_cast<uint16_t>(magnitude > kInfinity ? quiet_nan : rounded);
  }
}

}  // namespace

RoundingKey rounding_key(uint64_t seed, int64_t step, size_t parameter) {
  const uint64_t of_step = mix_wide(mix_wide(seed) + static_cast<uint64_t>(step));
  const uint64_t key = mix_wide(of_step + parameter);
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

void round_stochastically(const float* values, uint16_t* halves, size_t count, RoundingKey key,
                          uint64_t first_element) {
  constexpr uint64_t kRun = uint64_t{1} << 32;
  for (size_t done = 0; done < count;) {
    const uint64_t index = first_element + done;
    const auto run = static_cast<size_t>(std::min<uint64_t>(count - done, kRun - index % kRun));
    round_run(values + done, halves + done, run, static_cast<uint32_t>(index) + key.first,
              key.second ^ mix(static_cast<uint32_t>(index >> 32)));
    done += run;
  }
}

}  // namespace farandole
