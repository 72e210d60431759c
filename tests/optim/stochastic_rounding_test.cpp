// SPDX-License-Identifier: Apache-2.0
#include "optim/step/stochastic_rounding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "kernels/half_types.h"

namespace farandole {
namespace {

using comm::BFloat16;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<uint16_t> rounded(const std::vector<float>& values, RoundingKey key,
                              uint64_t first_element = 0) {
  std::vector<uint16_t> halves(values.size());
  round_stochastically(values.data(), halves.data(), values.size(), key, first_element);
  return halves;
}

float widened(uint16_t half) { return static_cast<float>(BFloat16{half}); }

/// The share of `count` elements of `value` that are not rounded towards zero.
double share_away(float value, size_t count, RoundingKey key) {
  const auto below = static_cast<uint16_t>(comm::bits_of_float(value) >> 16);
  double away = 0;
  for (const uint16_t half : rounded(std::vector<float>(count, value), key)) {
    EXPECT_TRUE(half == below || half == below + 1) << value;
    away += half == below + 1;
  }
  return away / static_cast<double>(count);
}

TEST(StochasticRounding, RoundsWithTheProbabilityOfTheDistance) {
  constexpr size_t kCount = 1 << 16;
  for (const uint32_t below : {0x3f800000U, 0xbf800000U, 0x42f70000U, 0x00000000U, 0x007f0000U}) {
    for (const uint32_t part : {0x0001U, 0x1000U, 0x4000U, 0x8000U, 0xc000U, 0xffffU}) {
      const float value = comm::float_of_bits(below | part);
      const double probability = part / 65536.0;
      const double deviation = std::sqrt(probability * (1 - probability) / kCount);
      EXPECT_NEAR(share_away(value, kCount, rounding_key(part, 1, below)), probability,
                  4 * deviation)
          << value;
    }
  }
}

/// Pearson's chi-square of `counts`, in deviations from its mean.
double chi_square(const std::vector<int>& counts, double expected) {
  double sum = 0;
  for (const int count : counts) sum += (count - expected) * (count - expected) / expected;
  const auto freedom = static_cast<double>(counts.size() - 1);
  return (sum - freedom) / std::sqrt(2 * freedom);
}

/// Of one element in many steps, of many elements in one, and of many parameters.
TEST(StochasticRounding, HasUniformBitsOverElementsStepsAndParameters) {
  // 1 + part / 128 is rounded up where the random number is at least 256 - part: the smallest such
  // part tells the upper 8 bits of it.
  constexpr int kCount = 1 << 14;
  std::vector<std::vector<int>> counts(3, std::vector<int>(256));
  const auto note = [&](std::vector<int>& into, RoundingKey key, uint64_t element) {
    int low = 0;
    for (int bit = 128; bit > 0; bit /= 2) {
      const auto part = static_cast<uint32_t>(256 - (low + bit)) << 8;
      const float value = comm::float_of_bits(0x3f800000U | part);
      if (rounded({value}, key, element)[0] == 0x3f81) low += bit;
    }
    ++into[static_cast<size_t>(low)];
  };
  for (int i = 0; i < kCount; ++i) {
    note(counts[0], rounding_key(0, 1, 0), static_cast<uint64_t>(i));
    note(counts[1], rounding_key(0, i, 0), 0);
    note(counts[2], rounding_key(0, 1, static_cast<size_t>(i)), 0);
  }
  for (const auto& each : counts) EXPECT_LT(std::abs(chi_square(each, kCount / 256.0)), 4);
}

TEST(StochasticRounding, IsIndependentFromOneElementAndStepToTheNext) {
  constexpr size_t kCount = 1 << 16;
  const std::vector<float> halfway(kCount, comm::float_of_bits(0x3f808000U));
  const auto first = rounded(halfway, rounding_key(3, 1, 0));
  const auto second = rounded(halfway, rounding_key(3, 2, 0));
  std::vector<int> neighbours(4), steps(4);
  for (size_t i = 0; i + 1 < kCount; i += 2) {
    ++neighbours[2 * (first[i] & 1U) + (first[i + 1] & 1U)];
    ++steps[2 * (first[i] & 1U) + (second[i] & 1U)];
  }
  EXPECT_LT(chi_square(neighbours, kCount / 8.0), 4);
  EXPECT_LT(chi_square(steps, kCount / 8.0), 4);
}

TEST(StochasticRounding, LeavesWhatABfloat16Can) {
  std::vector<float> values;
  for (uint32_t half = 0; half <= 0xffff; ++half) values.push_back(comm::float_of_bits(half << 16));
  const auto halves = rounded(values, rounding_key(1, 1, 1));
  for (uint32_t half = 0; half <= 0xffff; ++half) {
    const bool is_nan = (half & 0x7fffU) > 0x7f80U;
    if (is_nan) {
      EXPECT_TRUE(std::isnan(widened(halves[half])));
    } else {
      EXPECT_EQ(halves[half], half);
    }
  }
}

TEST(StochasticRounding, KeepsNanAndInfinityAndMakesNeither) {
  const float payload = comm::float_of_bits(0x7f800001U);  // all of it is in the lower bits
  const std::vector<float> values = {kInfinity, -kInfinity, payload, -payload};
  const float largest = comm::float_of_bits(0x7f7f0000U);
  const std::vector<float> high(1000, comm::float_of_bits(0x7f7f7fffU));
  const std::vector<float> higher(1000, -comm::float_of_bits(0x7f7f8000U));
  for (int step = 1; step <= 50; ++step) {
    const RoundingKey key = rounding_key(0, step, 0);
    const auto halves = rounded(values, key);
    EXPECT_EQ(widened(halves[0]), kInfinity);
    EXPECT_EQ(widened(halves[1]), -kInfinity);
    EXPECT_TRUE(std::isnan(widened(halves[2])));
    EXPECT_TRUE(std::isnan(widened(halves[3])));
    for (const uint16_t half : rounded(high, key)) ASSERT_EQ(widened(half), largest);
    for (const uint16_t half : rounded(higher, key)) ASSERT_EQ(widened(half), -kInfinity);
  }
}

TEST(StochasticRounding, GivesAnElementItsBitsWhereverACallBegins) {
  std::vector<float> values;
  for (int i = 0; i < 999; ++i) values.push_back(std::sin(static_cast<float>(i)));
  const RoundingKey key = rounding_key(7, 8, 9);
  for (const uint64_t first : {uint64_t{0}, (uint64_t{1} << 32) - 500, uint64_t{3} << 33}) {
    const auto whole = rounded(values, key, first);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(rounded({values[i]}, key, first + i)[0], whole[i]) << first << " " << i;
    }
  }
  // Elements 2^32 apart have other bits.
  EXPECT_NE(rounded(values, key, 0), rounded(values, key, uint64_t{1} << 32));
}

/// So that a new compiler or CPU, and a later version, go on with the same bits.
TEST(StochasticRounding, GivesTheBitsThatAreDocumented) {
  const RoundingKey key = rounding_key(42, 7, 3);
  const auto mix = [](uint32_t x) {
    x = (x ^ (x >> 16)) * 0x85ebca6bU;
    x = (x ^ (x >> 13)) * 0xc2b2ae35U;
    return x ^ (x >> 16);
  };
  for (uint32_t i = 0; i < 1000; ++i) {
    const uint32_t random = mix(mix(i + key.first) ^ key.second) >> 16;
    const uint32_t source = comm::bits_of_float(0.1F) + i;
    EXPECT_EQ(rounded({comm::float_of_bits(source)}, key, i)[0], (source + random) >> 16);
  }
  EXPECT_EQ(mix(1), 0x514e28b7U);  // as published
}

TEST(StochasticRounding, HasAKeyForEachSeedStepAndParameter) {
  std::set<std::pair<uint32_t, uint32_t>> keys;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (int step = 1; step <= 20; ++step) {
      for (size_t parameter = 0; parameter < 20; ++parameter) {
        const RoundingKey key = rounding_key(seed, step, parameter);
        keys.insert({key.first, key.second});
      }
    }
  }
  EXPECT_EQ(keys.size(), 8000U);
}

}  // namespace
}  // namespace farandole
