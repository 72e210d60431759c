// SPDX-License-Identifier: Apache-2.0
#include "ddp/hooks/orthonormalize.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace farandole {
namespace {

double largest(const at::Tensor& tensor) { return tensor.abs().max().item<double>(); }

/// The largest inner product of two columns of `matrix`, or distance of a norm from 1.
double disorder_of(const at::Tensor& matrix) {
  const at::Tensor columns = matrix.to(at::kDouble);
  return largest(columns.t().mm(columns) - at::eye(matrix.size(1), at::kDouble));
}

TEST(Orthonormalize, MakesAnOrthonormalBasisOfTheColumns) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor matrix = (at::arange(200 * 6, dtype).square() * 0.37).sin().view({200, 6});
    const at::Tensor before = matrix.to(at::kDouble);
    orthonormalize(matrix, 0);
    EXPECT_LT(disorder_of(matrix), 1e-6);
    const at::Tensor columns = matrix.to(at::kDouble);
    EXPECT_LT(largest(columns.mm(columns.t().mm(before)) - before), 1e-5);
  }
}

TEST(Orthonormalize, MakesDependentColumnsOrthonormalToo) {
  const at::Tensor two_dimensions = (at::arange(200 * 6, at::kDouble) * 0.37).sin().view({200, 6});
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor matrix = two_dimensions.to(dtype, false, /*copy=*/true);
    orthonormalize(matrix, 0);
    EXPECT_LT(disorder_of(matrix), 1e-5);
  }
}

TEST(Orthonormalize, LeavesZerosAndMindsNoMagnitude) {
  const at::Tensor matrix = at::stack({at::zeros({4}), at::full({4}, 1e-30F), at::ones({4})}, 1);
  orthonormalize(matrix, 0);
  EXPECT_EQ(matrix.select(1, 0).abs().sum().item<float>(), 0);
  EXPECT_EQ(matrix.select(1, 1)[0].item<float>(), 0.5F);
}

}  // namespace
}  // namespace farandole
