// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "comm/shm/control_block.h"
#include "farandole/comm/communicator.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

using comm::Communicator;
using comm::DataType;

/// Barriers that rank 0 of the only group of this process has passed within collectives.
uint64_t steps_of_rank_zero() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:farandole") == std::string::npos) continue;
    uintptr_t begin = 0;
    std::sscanf(line.c_str(), "%" SCNxPTR, &begin);
    const uintptr_t ranks = begin + sizeof(comm::shm::GroupBlock);
    return reinterpret_cast<const comm::shm::RankBlock*>(ranks)->steps.load();
  }
  ADD_FAILURE() << "no segment is mapped";
  return 0;
}

TEST(AllToAllVStaging, TakesNoChunksForBlocksThatDoNotTravel) {
  run_process_ranks(2, [](Communicator& group) {
    const size_t to_itself = 5000000;
    const auto own = static_cast<size_t>(group.rank());
    std::vector<size_t> counts(2, 10);
    counts[own] = to_itself;
    std::vector<int32_t> in(to_itself + 10, group.rank());
    std::vector<int32_t> out(in.size(), -1);
    group.barrier();
    const uint64_t before = steps_of_rank_zero();
    group.all_to_all_v(in.data(), counts.data(), out.data(), counts.data(), DataType::kInt32);
    group.barrier();
    EXPECT_LE(steps_of_rank_zero() - before, 2U);
    std::vector<int32_t> expected(10, 1 - group.rank());
    expected.insert(group.rank() == 0 ? expected.begin() : expected.end(), to_itself, group.rank());
    EXPECT_EQ(out, expected);
  });
}

}  // namespace
}  // namespace farandole::test
