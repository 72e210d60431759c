// SPDX-License-Identifier: Apache-2.0
#include "ddp/hooks/largest_elements.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace farandole {
namespace {

/// Indices in increasing order.
at::Tensor sorted_largest(const at::Tensor& values, int64_t k) {
  return std::get<0>(largest_elements(values, k).sort());
}

TEST(LargestElements, AreThoseOfTopK) {
  for (const int64_t n : {1, 2, 7, 100, 5000}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor values = (at::arange(n, at::kDouble).square() * 0.37).sin().to(dtype);
      for (const int64_t k : {int64_t{0}, int64_t{1}, n / 3, n}) {
        const at::Tensor expected = std::get<1>(values.abs().topk(k));
        EXPECT_TRUE(at::equal(sorted_largest(values, k), std::get<0>(expected.sort())))
            << k << " of " << n;
      }
    }
  }
}

TEST(LargestElements, AreTheFirstOfEquals) {
  EXPECT_TRUE(at::equal(sorted_largest(at::ones({100}), 10), at::arange(10)));
  EXPECT_TRUE(at::equal(sorted_largest(at::zeros({100}), 10), at::arange(10)));
  const at::Tensor signs = at::tensor({1.0F, -2.0F, 2.0F, -1.0F, 0.5F});
  EXPECT_TRUE(at::equal(sorted_largest(signs, 3), at::arange(3)));
}

TEST(LargestElements, TakeSmallAndLargeMagnitudesApart) {
  const at::Tensor values = at::tensor({1e-45F, -1e-38F, 0.0F, 3e38F, -1e-44F, 1.0F});
  EXPECT_TRUE(at::equal(sorted_largest(values, 4), at::tensor({1, 3, 4, 5})));
}

TEST(LargestElements, HaveNaNAndInfAboveAll) {
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor values =
      at::tensor({3e38F, std::nanf(""), 0.0F, -infinity, 1.0F, -std::nanf("")});
  EXPECT_TRUE(at::equal(sorted_largest(values, 3), at::tensor({1, 3, 5})));
  EXPECT_TRUE(at::equal(sorted_largest(values, 2), at::tensor({1, 5})));
}

TEST(LargestElements, TakeStridedValues) {
  const at::Tensor values = at::arange(20, at::kFloat).slice(0, 0, 20, 2);
  EXPECT_TRUE(at::equal(sorted_largest(values, 2), at::tensor({8, 9})));
}

}  // namespace
}  // namespace farandole
