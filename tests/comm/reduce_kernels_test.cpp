// SPDX-License-Identifier: Apache-2.0
#include "kernels/reduce_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "farandole/error.h"
#include "kernels/half_types.h"
#include "support/pattern.h"

namespace farandole::test {
namespace {

using comm::BFloat16;
using comm::DataType;
using comm::Float16;
using comm::ReduceOp;

/// float32 to binary16 by search over the half's neighbours: slow, and plainly right.
uint16_t nearest_half(float value) {
  uint16_t best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (uint32_t bits = 0; bits < 0x7c00U; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const double distance =
        std::abs(static_cast<double>(static_cast<float>(Float16{half})) - std::abs(value));
    if (distance < best_distance || (distance == best_distance && half % 2 == 0)) {
      best = half;
      best_distance = distance;
    }
  }
  return static_cast<uint16_t>(best | (std::signbit(value) ? 0x8000U : 0U));
}

TEST(HalfTypes, EveryHalfSurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    const auto raw = static_cast<uint16_t>(bits);
    const auto through_float16 = static_cast<float>(Float16{raw});
    if (std::isnan(through_float16)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(Float16::from(through_float16))));
    } else {
      ASSERT_EQ(Float16::from(through_float16).bits, raw);
    }
    const auto through_bfloat16 = static_cast<float>(BFloat16{raw});
    if (std::isnan(through_bfloat16)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16::from(through_bfloat16))));
    } else {
      ASSERT_EQ(BFloat16::from(through_bfloat16).bits, raw);
    }
  }
}

TEST(HalfTypes, Float16RoundsToTheNearestHalfAndTiesToEven) {
  for (const float value :
       {1.0F, 1.00048828125F, 1.00146484375F, 3.14159F, -2.7182818F, 65504.0F, 65519.0F, 6.1e-5F,
        5.97e-8F, 2.98e-8F, 2.9e-8F, 1e-9F, -0.0F, 0.1F, 1234.567F, 6.0976e-5F}) {
    EXPECT_EQ(Float16::from(value).bits, nearest_half(value)) << value;
  }
  EXPECT_EQ(Float16::from(65520.0F).bits, 0x7c00U);
  EXPECT_EQ(Float16::from(-1e30F).bits, 0xfc00U);
}

TEST(ReduceKernels, AccumulatesHalfTypesInFloatAndRoundsOnce) {
  // 256 + 1 + 1 is 258 in float32 but 256 when every step rounds to bfloat16.
  const BFloat16 large = BFloat16::from(256.0F);
  const BFloat16 one = BFloat16::from(1.0F);
  BFloat16 result{0};
  const void* sources[] = {&large, &one, &one};
  void* destination = &result;
  comm::reduce({sources, 3}, {&destination, 1}, 1, DataType::kBFloat16, ReduceOp::kSum);
  EXPECT_EQ(static_cast<float>(result), 258.0F);
}

TEST(ReduceKernels, WritesTheSameBitsToAllDestinations) {
  for (const size_t sources_count : {1, 2, 3, 5}) {
    for (const size_t destinations_count : {1, 2, 4}) {
      const size_t count = 3001;
      std::vector<std::vector<float>> inputs;
      std::vector<const void*> sources;
      for (size_t s = 0; s < sources_count; ++s) {
        inputs.emplace_back(count);
        for (size_t i = 0; i < count; ++i) {
          inputs[s][i] = std::sin(static_cast<float>(i * 31 + s * 17));
        }
        sources.push_back(inputs[s].data());
      }
      std::vector<std::vector<float>> outputs(destinations_count, std::vector<float>(count));
      std::vector<void*> destinations;
      for (auto& output : outputs) destinations.push_back(output.data());
      comm::reduce({sources.data(), sources_count}, {destinations.data(), destinations_count},
                   count, DataType::kFloat32, ReduceOp::kSum);
      for (size_t i = 0; i < count; ++i) {
        float expected = inputs[0][i];
        for (size_t s = 1; s < sources_count; ++s) expected += inputs[s][i];
        for (const auto& output : outputs) ASSERT_EQ(output[i], expected);
      }
    }
  }
}

TEST(ReduceKernels, ReadsAndWritesElementsAtAnyAddress) {
  constexpr size_t kCount = 2100;  // more than one block of accumulators
  for (const DataType dtype : all_dtypes()) {
    for (const ReduceOp op : all_reduce_ops()) {
      if (!has_reduction(dtype, op)) continue;
      for (const int world_size : {1, 2, 5}) {
        const size_t bytes = kCount * comm::size_of(dtype);
        std::vector<std::vector<unsigned char>> buffers;
        std::vector<const void*> sources;
        for (int rank = 0; rank < world_size; ++rank) {
          buffers.emplace_back(bytes + 1);
          Pattern::of_rank(rank, dtype).write(buffers.back().data() + 1, 0, kCount);
          sources.push_back(buffers.back().data() + 1);
        }
        std::vector<unsigned char> first(bytes + 1);
        std::vector<unsigned char> second(bytes + 1);
        void* destinations[] = {first.data() + 1, second.data() + 1};
        comm::reduce({sources.data(), sources.size()}, {destinations, 2}, kCount, dtype, op);
        ASSERT_EQ(first, second);
        const Pattern expected = Pattern::of_reduction(world_size, dtype, op);
        ASSERT_EQ(expected.first_difference(first.data() + 1, 0, kCount), kCount)
            << comm::name_of(op) << " of " << comm::name_of(dtype);
      }
    }
  }
}

TEST(ReduceKernels, LetsNanWinInMinAndMax) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float first[] = {nan, 1.0F};
  const float second[] = {1.0F, nan};
  float out[2];
  const void* sources[] = {first, second};
  void* destination = out;
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    comm::reduce({sources, 2}, {&destination, 1}, 2, DataType::kFloat32, op);
    EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1]));
  }
}

TEST(ReduceKernels, WrapsIntegersAroundAndTruncatesTheirMean) {
  const int8_t a[] = {127, -128, -7};
  const int8_t b[] = {1, -1, 4};
  int8_t out[3];
  const void* sources[] = {a, b};
  void* destination = out;
  comm::reduce({sources, 2}, {&destination, 1}, 3, DataType::kInt8, ReduceOp::kSum);
  EXPECT_EQ(out[0], -128);
  EXPECT_EQ(out[1], 127);
  comm::reduce({sources, 2}, {&destination, 1}, 3, DataType::kInt8, ReduceOp::kAvg);
  EXPECT_EQ(out[2], -1);
  EXPECT_THROW(comm::reduce({sources, 2}, {&destination, 1}, 3, DataType::kBool, ReduceOp::kAvg),
               InvalidArgument);
}

}  // namespace
}  // namespace farandole::test
