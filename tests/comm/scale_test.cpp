// SPDX-License-Identifier: Apache-2.0
// Many ranks on few cores.
#include <gtest/gtest.h>

#include <vector>

#include "farandole/comm/communicator.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

using comm::Communicator;
using comm::DataType;
using comm::ReduceOp;

void train_a_little(Communicator& group) {
  for (int round = 0; round < 5; ++round) {
    for (const size_t count : {size_t{1}, size_t{300}, size_t{40000}}) {
      std::vector<int32_t> data(count, group.rank() + round);
      group.all_reduce(data.data(), data.data(), count, DataType::kInt32, ReduceOp::kSum);
      const int world = group.world_size();
      ASSERT_EQ(data.front(), world * (world - 1) / 2 + world * round);
      ASSERT_EQ(data.back(), data.front());
    }
    group.barrier();
  }
}

TEST(Scale, ManyMoreThreadRanksThanCores) {
  for (const int world : thin_matrix() ? std::vector<int>{17} : std::vector<int>{8, 17, 33, 64}) {
    run_thread_ranks(world, train_a_little);
  }
}

TEST(Scale, ManyMoreProcessRanksThanCores) {
  for (const int world : thin_matrix() ? std::vector<int>{9} : std::vector<int>{16, 64}) {
    run_process_ranks(world, train_a_little);
  }
}

}  // namespace
}  // namespace farandole::test
