// SPDX-License-Identifier: Apache-2.0
#include "optim/step/stochastic_rounding.h"

#include <algorithm>

#include "kernels/target_clones.h"
#include "optim/step/rounding_bits.h"

namespace farandole {
namespace {

/// A step of SplitMix64 (Steele, Lea and Flood 2014).
uint64_t mix_wide(uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

/// `counter`: of the first element; it does not overflow 32 bits.
FARANDOLE_CLONES void round_run(const float* values, uint16_t* halves, size_t count,
                                uint32_t counter, uint32_t second) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    halves[i] = stochastic_bfloat16(values[i], counter + static_cast<uint32_t>(i), second);
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
              key.second ^ mix_bits(static_cast<uint32_t>(index >> 32)));
    done += run;
  }
}

}  // namespace farandole
