// SPDX-License-Identifier: Apache-2.0
#include "ddp/finite_check.h"

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "kernels/finite_kernels.h"

namespace farandole {
namespace {

using comm::DataType;

const std::map<at::ScalarType, DataType> kTypes = {{at::kDouble, DataType::kFloat64},
                                                   {at::kFloat, DataType::kFloat32},
                                                   {at::kHalf, DataType::kFloat16},
                                                   {at::kBFloat16, DataType::kBFloat16}};

double largest(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return std::numeric_limits<double>::max();
    case at::kFloat:
      return static_cast<double>(std::numeric_limits<float>::max());
    case at::kHalf:
      return 65504;
    default:
      return std::ldexp(255, 120);
  }
}

bool are_finite_in(const at::Tensor& tensor, size_t terms = 1) {
  return comm::are_finite(tensor.const_data_ptr(), static_cast<size_t>(tensor.numel()),
                          kTypes.at(tensor.scalar_type()), terms);
}

TEST(FiniteCheck, SeesAnInfOrNanAnywhere) {
  for (const auto& [dtype, type] : kTypes) {
    for (const int64_t count : {1, 7, 64, 1000, 70000}) {  // blocks have up to 32768
      for (const int64_t at : {int64_t{0}, count / 2, count - 1}) {
        for (const double odd : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
          at::Tensor tensor = at::ones({count}, dtype) * largest(dtype);
          EXPECT_TRUE(are_finite_in(tensor)) << dtype;
          EXPECT_TRUE(is_finite(tensor)) << dtype;
          tensor[at] = odd;
          EXPECT_FALSE(are_finite_in(tensor)) << dtype << " " << count << " " << at << " " << odd;
          EXPECT_FALSE(is_finite(tensor)) << dtype << " " << count << " " << at << " " << odd;
        }
      }
    }
  }
}

TEST(FiniteCheck, LeavesRoomForSums) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const int terms : {2, 3, 4, 5, 64}) {
      // What is let pass adds up to a finite sum; what does not by far is not let pass.
      double value = largest(dtype);
      while (!are_finite_in(at::ones({1}, dtype) * value, static_cast<size_t>(terms))) value /= 2;
      const double limit = dtype == at::kDouble ? largest(at::kDouble) : largest(at::kFloat);
      EXPECT_LE(value / limit, 1.0 / terms) << dtype << " " << terms;
      EXPECT_GE(value / limit, 0.124 / terms) << dtype << " " << terms;
    }
  }
  EXPECT_TRUE(are_finite_in(at::ones({1}, at::kHalf) * 65504, 1000));  // in float32
}

TEST(FiniteCheck, TakesTensorsOfAnyForm) {
  for (const double odd : {1.0, HUGE_VAL}) {
    at::Tensor tensor = at::ones({4, 6});
    tensor[1][2] = odd;
    const bool expected = odd == 1.0;
    EXPECT_EQ(is_finite(tensor.t()), expected);
    EXPECT_EQ(is_finite(tensor.slice(1, 0, 6, 2)), expected);
    EXPECT_EQ(is_finite(tensor[1][2].expand({5, 5})), expected);
    EXPECT_EQ(is_finite(tensor.to(at::kComplexFloat)), expected);
    EXPECT_EQ(is_finite(tensor.to_sparse()), expected);
  }
  EXPECT_TRUE(is_finite(at::empty({0})));
  EXPECT_TRUE(is_finite(at::ones({3}, at::kLong)));
}

}  // namespace
}  // namespace farandole
