// SPDX-License-Identifier: Apache-2.0
#include "ddp/gradient_move.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace farandole {
namespace {

const std::vector<at::ScalarType> kFloats = {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16};
const std::vector<int64_t> kShape = {2, 3, 4, 5};

enum class Layout { kContiguous, kTransposed, kChannelsLast, kSliced, kExpanded };
const std::vector<Layout> kDenseLayouts = {Layout::kContiguous, Layout::kTransposed,
                                           Layout::kChannelsLast};

/// Zeros of shape kShape whose memory is laid out so.
at::Tensor zeros_in(Layout layout, at::ScalarType dtype) {
  const at::TensorOptions options = at::dtype(dtype);
  switch (layout) {
    case Layout::kContiguous:
      return at::zeros(kShape, options);
    case Layout::kTransposed:
      return at::zeros({5, 4, 3, 2}, options).permute({3, 2, 1, 0});
    case Layout::kChannelsLast:
      return at::zeros(kShape, options).contiguous(at::MemoryFormat::ChannelsLast);
    case Layout::kSliced:
      return at::zeros({2, 3, 8, 7}, options).slice(2, 1, 8, 2).slice(3, 1, 6);
    case Layout::kExpanded:
      return at::zeros({2, 1, 4, 1}, options).expand(kShape);
  }
  return {};
}

/// Whole numbers from -50 to 50: sums of halves of them are exact in bfloat16 too. Repeated where
/// memory is.
at::Tensor numbers_in(Layout layout, at::ScalarType dtype, int64_t seed) {
  at::Tensor tensor = zeros_in(layout, dtype);
  at::Tensor memory = layout == Layout::kExpanded ? tensor.slice(1, 0, 1).slice(3, 0, 1) : tensor;
  const at::Tensor values = at::arange(seed, seed + memory.numel(), at::kLong) * 37 % 101 - 50;
  memory.copy_(values.view(memory.sizes()));
  return tensor;
}

std::string text_of(const at::Tensor& gradient, const at::Tensor& slot, const GradientMove& how) {
  return std::string(toString(gradient.scalar_type())) + " to " + toString(slot.scalar_type()) +
         ", scale " + std::to_string(how.scale) + (how.accumulate ? ", accumulate" : "") +
         (how.check_finite ? ", check" : "");
}

/// Moves `gradient` into `slot` and expects the exact result, which whole numbers have.
void expect_exact(const at::Tensor& gradient, const at::Tensor& slot, const GradientMove& how) {
  at::Tensor expected = gradient.to(at::kDouble) * how.scale;
  if (how.accumulate) expected = expected + slot.to(at::kDouble);
  const at::Tensor before = gradient.clone();
  EXPECT_TRUE(move_gradient(gradient, slot, how));
  EXPECT_TRUE(at::equal(slot.to(at::kDouble), expected)) << text_of(gradient, slot, how);
  EXPECT_TRUE(at::equal(gradient, before));
}

std::vector<GradientMove> every_way() {
  std::vector<GradientMove> ways;
  for (const double scale : {1.0, 0.5}) {
    for (const bool accumulate : {false, true}) {
      for (const bool check : {false, true}) ways.push_back({scale, accumulate, check});
    }
  }
  return ways;
}

void expect_exact_for_all_dtypes(Layout gradient_layout, Layout place_layout) {
  for (const at::ScalarType from : kFloats) {
    for (const at::ScalarType to : kFloats) {
      for (const GradientMove& how : every_way()) {
        expect_exact(numbers_in(gradient_layout, from, 3), numbers_in(place_layout, to, 50), how);
      }
    }
  }
}

TEST(GradientMove, IsExactBetweenEqualLayouts) {
  for (const Layout layout : kDenseLayouts) expect_exact_for_all_dtypes(layout, layout);
}

TEST(GradientMove, IsExactFromEveryLayoutIntoDensePlaces) {
  for (const Layout slot : kDenseLayouts) {
    for (const Layout gradient : {Layout::kContiguous, Layout::kTransposed, Layout::kChannelsLast,
                                  Layout::kSliced, Layout::kExpanded}) {
      if (gradient != slot) expect_exact_for_all_dtypes(gradient, slot);
    }
  }
}

TEST(GradientMove, LeavesTheGapsOfAPlaceAlone) {
  for (const Layout gradient : {Layout::kContiguous, Layout::kSliced, Layout::kExpanded}) {
    expect_exact_for_all_dtypes(gradient, Layout::kSliced);
  }
  const at::Tensor base = at::ones({4, 6});
  move_gradient(at::full({4, 2}, 7), base.slice(1, 2, 4), {});
  EXPECT_EQ(base.sum().item<float>(), 4 * 4 + 4 * 2 * 7);
}

TEST(GradientMove, IgnoresStridesOfDimensionsOfSizeOne) {
  const at::Tensor gradient = at::arange(6, at::kFloat).as_strided({1, 6, 1}, {99, 1, 7});
  expect_exact(gradient, at::zeros({1, 6, 1}), {2});
}

TEST(GradientMove, MovesEveryLength) {
  for (int64_t n = 0; n < 140; ++n) {
    const at::Tensor flat = at::zeros({n + 2});
    expect_exact(at::arange(n, at::kFloat), flat.slice(0, 1, n + 1), {0.5, true, true});
    EXPECT_EQ(flat[0].item<float>(), 0);
    EXPECT_EQ(flat[n + 1].item<float>(), 0);
  }
}

TEST(GradientMove, MovesScalarsAndNothing) {
  expect_exact(at::full({}, 3.0), at::full({}, 4.0), {2, true});
  EXPECT_TRUE(move_gradient(at::empty({0, 3}), at::empty({0, 3}), {2, true, true}));
}

TEST(GradientMove, ScalesAPlaceThatIsTheGradient) {
  const at::Tensor both = at::arange(100, at::kFloat);
  move_gradient(both, both, {0.5});
  EXPECT_TRUE(at::equal(both, at::arange(100, at::kFloat) / 2));
  move_gradient(both, both, {});
  EXPECT_TRUE(at::equal(both, at::arange(100, at::kFloat) / 2));
}

TEST(GradientMove, LeavesNoTraceInTheGraph) {
  const at::Tensor gradient = at::ones({2, 2}).requires_grad_();
  const at::Tensor slot = at::zeros({2, 2});
  move_gradient(gradient.t() * 2, slot, {0.5});
  EXPECT_FALSE(slot.requires_grad());
}

// --- Rounding

/// Values whose products and sums have to be rounded.
at::Tensor fractions(int64_t n, int64_t seed) {
  return (at::arange(seed, seed + n, at::kFloat) * 0.37).sin();
}

TEST(GradientMove, ComputesHalfTypesInFloat32WithOneRounding) {
  for (const at::ScalarType from : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const at::ScalarType to : {at::kFloat, at::kHalf, at::kBFloat16}) {
      const at::Tensor gradient = fractions(20 * 30, 1).view({20, 30}).to(from);
      const at::Tensor start = fractions(20 * 30, 700).view({20, 30}).to(to);
      const at::Tensor sum = (start.to(at::kFloat) + gradient.to(at::kFloat) * (1.0F / 3)).to(to);
      const at::Tensor columns = gradient.t().contiguous().t();
      for (const at::Tensor& any_strides : {gradient, columns}) {
        const at::Tensor slot = start.clone();
        move_gradient(any_strides, slot, {1.0F / 3, true});
        EXPECT_TRUE(at::equal(slot, sum)) << text_of(gradient, slot, {});
      }
    }
  }
}

TEST(GradientMove, ComputesInFloat64WhereOneSideIs) {
  const at::Tensor gradient = fractions(100, 1).to(at::kDouble) / 3;
  const at::Tensor slot = at::zeros({100});
  move_gradient(gradient, slot, {1.0 / 3});
  EXPECT_TRUE(at::equal(slot, (gradient * (1.0 / 3)).to(at::kFloat)));
}

// --- NaN and Inf

TEST(GradientMove, FindsWhatIsNotFinite) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity()}) {
    for (const at::ScalarType from : kFloats) {
      for (const at::ScalarType to : kFloats) {
        for (const int64_t where : {0, 1, 31, 98}) {
          const at::Tensor gradient = at::ones({99}, at::dtype(from));
          gradient[where] = bad;
          const at::Tensor slot = at::ones({99}, at::dtype(to));
          EXPECT_FALSE(move_gradient(gradient, slot, {0.5, true, true}));
          EXPECT_TRUE(move_gradient(gradient, slot, {0.5, true, false}));
        }
      }
    }
  }
}

TEST(GradientMove, FindsWhatOverflowsThePlace) {
  const at::Tensor gradient = at::full({10}, 60000.0);
  EXPECT_TRUE(move_gradient(gradient, at::zeros({10}, at::kHalf), {1, false, true}));
  EXPECT_FALSE(move_gradient(gradient, at::zeros({10}, at::kHalf), {2, false, true}));
  EXPECT_FALSE(move_gradient(gradient.to(at::kHalf), gradient.to(at::kHalf), {1, true, true}));
}

TEST(GradientMove, FindsWhatIsNotFiniteInStridedGradients) {
  const at::Tensor gradient = at::ones({3, 4});
  gradient[2][1] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(move_gradient(gradient.t(), at::zeros({4, 3}), {1, false, true}));
  EXPECT_FALSE(move_gradient(gradient, at::zeros({3, 8}).slice(1, 0, 8, 2), {1, false, true}));
}

TEST(GradientMove, CopiesNaNWithItsPayload) {
  const at::Tensor gradient = at::full({4}, 0x7fc12345, at::kInt).view(at::kFloat);
  const at::Tensor slot = at::zeros({4});
  move_gradient(gradient, slot, {});
  EXPECT_TRUE(at::equal(slot.view(at::kInt), gradient.view(at::kInt)));
}

// --- Complex and views

at::Tensor complex_numbers(int64_t n) {
  return at::complex(at::arange(n, at::kFloat), at::arange(n, at::kFloat) - 5);
}

TEST(GradientMove, MovesComplexNumbers) {
  for (const GradientMove& how : every_way()) {
    const at::Tensor gradient = complex_numbers(12).view({3, 4});
    for (const at::Tensor& any_strides : {gradient, gradient.t().contiguous().t()}) {
      const at::Tensor slot = complex_numbers(12).view({3, 4}) * 2;
      const at::Tensor expected = gradient * how.scale + (how.accumulate ? slot : slot * 0);
      EXPECT_TRUE(move_gradient(any_strides, slot, how));
      EXPECT_TRUE(at::equal(slot, expected));
    }
  }
  const at::Tensor bad = complex_numbers(3) / 0;
  EXPECT_FALSE(move_gradient(bad, at::zeros({3}, at::kComplexFloat), {1, false, true}));
}

TEST(GradientMove, SeesWhatConjugatedAndNegatedViewsShow) {
  const at::Tensor conjugated = complex_numbers(12).conj();
  ASSERT_TRUE(conjugated.is_conj());
  const at::Tensor slot = at::zeros({12}, at::kComplexFloat);
  move_gradient(conjugated, slot, {});
  EXPECT_TRUE(at::equal(slot, conjugated.resolve_conj()));
  const at::Tensor negated = at::imag(conjugated);
  ASSERT_TRUE(negated.is_neg());
  expect_exact(negated, at::zeros({12}), {0.5, true});
  expect_exact(negated, at::zeros({12}), {});
}

}  // namespace
}  // namespace farandole
