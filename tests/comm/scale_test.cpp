// SPDX-License-Identifier: Apache-2.0
// Many ranks on few cores, and many groups one after the other.
#include <dirent.h>
#include <gtest/gtest.h>

#include <fstream>
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

size_t entries_of(const char* folder) {
  size_t count = 0;
  DIR* directory = ::opendir(folder);
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

size_t farandole_mappings() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:farandole") != std::string::npos) ++count;
  }
  return count;
}

TEST(Scale, GroupsAndSymmetricMemoryLeaveNoDescriptorsAndNoMappings) {
  const auto use_and_drop = [] {
    run_thread_ranks(3, [](Communicator& group) {
      auto first = group.allocate_symmetric(100000);
      auto second = group.allocate_symmetric(1);
      first.reset();
      auto* data = static_cast<float*>(second->local());
      *data = 1.0F;
      group.all_reduce(data, data, 1, DataType::kFloat32, ReduceOp::kSum);
      ASSERT_EQ(*data, 3.0F);
    });
  };
  use_and_drop();
  const size_t before = entries_of("/proc/self/fd");
  for (int i = 0; i < 20; ++i) use_and_drop();
  EXPECT_EQ(entries_of("/proc/self/fd"), before);
  EXPECT_EQ(farandole_mappings(), 0U);
}

}  // namespace
}  // namespace farandole::test
