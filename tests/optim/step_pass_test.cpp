// SPDX-License-Identifier: Apache-2.0
#include "optim/step/step_pass.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <vector>

#include "optim/step/gradient_change.h"

namespace farandole {
namespace {

TEST(StepPass, AppliesEachKindOfChangeAndEachInItsTurn) {
  using Kind = GradientChange::Kind;
  const std::vector<float> gradient{8, -2, 0.5};
  const void* const source = gradient.data();
  const std::vector<GradientChange> changes{
      {Kind::kScale, 2}, {Kind::kNorm, 1, at::tensor(0.25, at::kDouble)}, {Kind::kClamp, 3}};
  const std::vector<std::vector<float>> expected{{16, -4, 1}, {4, -1, 0.25}, {3, -1, 0.25}};
  for (size_t count = 1; count <= changes.size(); ++count) {
    const std::vector<GradientChange> first(changes.begin(),
                                            changes.begin() + static_cast<int64_t>(count));
    StepPiece piece{};
    piece.dtype = comm::DataType::kFloat32;
    piece.elements = 3;
    piece.gradient = {comm::DataType::kFloat32, &source, 1, 1, &first};
    std::vector<float> changed(3);
    StepPass().collect({piece}, {changed.data()});
    EXPECT_EQ(changed, expected[count - 1]);
  }
}

}  // namespace
}  // namespace farandole
