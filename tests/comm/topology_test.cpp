// SPDX-License-Identifier: Apache-2.0
#include "farandole/comm/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "comm/cores.h"

namespace farandole::test {
namespace {

using ::testing::ElementsAre;

TEST(Topology, CountsLocalRanksOfInterleavedHosts) {
  comm::InProcessStore store;
  std::vector<comm::Topology> seen(5);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 5; ++rank) {
    ranks.emplace_back([&, rank] {
      comm::MeetingOptions options;
      options.group = "group";
      options.rank = rank;
      options.world_size = 5;
      options.host_id = rank % 2 == 0 ? "even" : "odd";
      options.timeout = std::chrono::seconds(30);
      seen[static_cast<size_t>(rank)] = comm::discover_topology(store, options);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (size_t rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(seen[rank].local_rank, static_cast<int>(rank / 2));
    EXPECT_EQ(seen[rank].local_world_size, rank % 2 == 0 ? 3 : 2);
    EXPECT_EQ(seen[rank].host_count(), 2);
    EXPECT_THAT(seen[rank].host_of_rank, ElementsAre(0, 1, 0, 1, 0));
  }
}

TEST(Topology, NamesRanksOfAPartByTheirRanksInTheGroup) {
  comm::Topology part;
  part.rank = 1;
  part.world_size = 2;
  part.host_of_rank = {0, 0};
  part.host_names = {"node-a"};
  part.pids = {11, 12};
  EXPECT_EQ(part.describe(1), "rank 1 (pid 12 on node-a)");
  EXPECT_EQ(part.own_position(), "rank 1 of 2");
  part.ranks_in_group = {3, 5};
  part.group_size = 8;
  EXPECT_EQ(part.describe(1), "rank 5 (pid 12 on node-a)");
  EXPECT_EQ(part.own_position(), "rank 5 of 8");
  EXPECT_THAT(part.fault_of({0, 1}).ranks, ElementsAre(3, 5));
}

TEST(Cores, CountsTheUnionOfPinnedRanks) {
  EXPECT_EQ(comm::count_cores({"0", "1"}), 2);
  EXPECT_EQ(comm::count_cores({"0-3,8", "2-5"}), 7);
  EXPECT_EQ(comm::count_cores({"0", "0", "0"}), 1);
  EXPECT_EQ(comm::count_cores({"", "nonsense"}), 1);
  EXPECT_GE(comm::count_cores({comm::allowed_cores()}), 1);
  EXPECT_GE(comm::cgroup_core_quota(), 1);
}

}  // namespace
}  // namespace farandole::test
