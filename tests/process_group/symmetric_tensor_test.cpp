// SPDX-License-Identifier: Apache-2.0
#include "farandole/process_group/symmetric_tensor.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "farandole/error.h"
#include "process_group/group_ranks.h"

namespace farandole {
namespace {

using test::error_of;
using test::run_group_ranks;

TEST(SymmetricTensor, IsReducedInPlaceAndOutlivesTheGroup) {
  std::vector<at::Tensor> kept(3);
  run_group_ranks(3, [&](ProcessGroupFarandole& group) {
    const at::Tensor tensor = group.allocate_symmetric({2, 50000}, at::kFloat);
    EXPECT_TRUE(tensor.is_contiguous());
    tensor.fill_(group.getRank() + 1);
    std::vector<at::Tensor> tensors{tensor};
    group.allreduce(tensors, {})->wait();
    EXPECT_TRUE(at::equal(tensor, at::full({2, 50000}, 6, at::kFloat)));
    kept[static_cast<size_t>(group.getRank())] = tensor;
  });
  for (const at::Tensor& tensor : kept) {
    EXPECT_TRUE(at::equal(tensor, at::full({2, 50000}, 6, at::kFloat)));
  }
}

TEST(SymmetricTensor, IsCollective) {
  run_group_ranks(2, [](ProcessGroupFarandole& group) {
    error_of<InvalidArgument>([&] { group.allocate_symmetric({-1}, at::kFloat); });
    error_of<MismatchError>([&] { group.allocate_symmetric({group.getRank() + 1}, at::kFloat); });
    EXPECT_EQ(group.allocate_symmetric({0}, at::kLong).numel(), 0);
  });
}

TEST(SymmetricTensor, NeedsAGroup) {
  error_of<InvalidArgument>([] { symmetric_empty({1}); });
}

}  // namespace
}  // namespace farandole
