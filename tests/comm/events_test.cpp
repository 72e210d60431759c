// SPDX-License-Identifier: Apache-2.0
#include "farandole/comm/events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "farandole/comm/communicator.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

using comm::Event;

TEST(Events, RecordWhatEachCollectiveDid) {
  run_thread_ranks(2, [](comm::Communicator& group) {
    if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    float value = 1.0F;
    group.all_reduce(&value, &value, 1, comm::DataType::kFloat32, comm::ReduceOp::kSum);
  });
  bool waited_for_rank_1 = false;
  for (const Event& event : comm::recent_events(100)) {
    EXPECT_LE(event.begin_ns, event.arrived_ns);
    EXPECT_LE(event.arrived_ns, event.end_ns);
    if (event.operation != comm::OpKind::kAllReduce) continue;
    EXPECT_EQ(event.bytes, 4U);
    EXPECT_EQ(event.sequence, 2U);  // the first is the barrier that forms the group
    if (event.latest_rank == 1 && event.arrived_ns - event.begin_ns > 10'000'000) {
      waited_for_rank_1 = true;
      EXPECT_THAT(comm::describe(event), ::testing::HasSubstr("#2 all_reduce in group 'test'"));
      EXPECT_THAT(comm::describe(event), ::testing::HasSubstr("waiting for rank 1"));
    }
  }
  EXPECT_TRUE(waited_for_rank_1);
}

TEST(Events, NumberEachCollectiveOnceAndCountWhatIsSentInUnevenBlocks) {
  run_process_ranks(2, [](comm::Communicator& group) {
    group.shared_memory()->allocate_symmetric(100);
    // Rank 0 sends 1 element to itself and 2 to rank 1; rank 1 sends 3 and 4.
    const bool first = group.rank() == 0;
    const std::vector<size_t> sends = first ? std::vector<size_t>{1, 2} : std::vector<size_t>{3, 4};
    const std::vector<size_t> receives =
        first ? std::vector<size_t>{1, 3} : std::vector<size_t>{2, 4};
    const std::vector<float> in(7);
    std::vector<float> out(6);
    group.all_to_all_v(in.data(), sends.data(), out.data(), receives.data(),
                       comm::DataType::kFloat32);
    std::vector<std::string> seen;
    for (const Event& event : comm::recent_events(3)) {
      seen.push_back("#" + std::to_string(event.sequence) + " " + name_of(event.operation) + " " +
                     std::to_string(event.bytes));
    }
    EXPECT_THAT(seen, ::testing::ElementsAre("#1 barrier 0", "#2 allocate_symmetric 100",
                                             first ? "#3 all_to_all_v 12" : "#3 all_to_all_v 28"));
  });
}

TEST(Events, ReadersNeverSeeATornEventWhileAThreadWrites) {
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t i = 1; !stop.load(); ++i) {
      Event event;
      event.group = 9999;
      event.sequence = event.bytes = event.begin_ns = event.arrived_ns = event.end_ns = i;
      comm::record(event);
    }
  });
  size_t seen = 0;
  for (int look = 0; look < 200 || seen == 0; ++look) {
    for (const Event& event : comm::recent_events(comm::kEventsPerThread)) {
      if (event.group != 9999) continue;
      ++seen;
      ASSERT_EQ(event.sequence, event.bytes);
      ASSERT_EQ(event.begin_ns, event.arrived_ns);
      ASSERT_EQ(event.begin_ns, event.end_ns);
    }
  }
  stop.store(true);
  writer.join();
  EXPECT_GT(seen, 0U);
}

}  // namespace
}  // namespace farandole::test
