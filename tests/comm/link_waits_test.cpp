// SPDX-License-Identifier: Apache-2.0
#include "comm/hosts/link_waits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "comm/queued_call.h"
#include "farandole/comm/topology.h"

namespace farandole::comm::hosts {
namespace {

using shm::CrossedWaits;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kLooks = 30;  ///< more than are needed

bool all_are_missing(int /*rank*/) { return true; }

shm::Signature barrier() {
  shm::Signature call{};
  call.operation = OpKind::kBarrier;
  call.root = -1;
  return call;
}

Topology topology_of(int rank) {
  Topology topology;
  topology.rank = rank;
  topology.world_size = 2;
  topology.host_names = {"host0", "host1"};
  topology.host_of_rank = {0, 1};
  topology.pids = {7, 7};
  topology.processes = {"alike", "alike"};
  return topology;
}

/// Two ranks on hosts of their own, each in a group of its own. Both are in this process here, and
/// tell each other what they would send.
class LinkWaitsOfTwoRanks : public testing::Test {
 protected:
  using Found = std::optional<CrossedWaits::Crossing>;

  void note_threads() {
    training_[0].note_thread(1, training_[1].thread());
    training_[1].note_thread(0, training_[0].thread());
  }
  /// Both have made a collective of the training; now each is in one of its own.
  void enter() {
    for (LinkWaits& each : training_) each.enter(4, barrier());
    note_threads();
    training_[0].enter(5, barrier());
    default_[1].enter(3, barrier());
  }
  Found look(int rank) {
    LinkWaits& own = rank == 0 ? training_[0] : default_[1];
    LinkWaits& of_peer = rank == 0 ? training_[1] : default_[0];
    const Found found = own.look(all_are_missing);
    const std::string news = own.news();
    if (!news.empty()) of_peer.hear(rank, news);
    return found;
  }
  /// What both find in the end.
  std::array<Found, 2> look_for_long() {
    std::array<Found, 2> found;
    for (int i = 0; i < kLooks; ++i) {
      for (int rank = 0; rank < 2; ++rank) {
        if (!found[static_cast<size_t>(rank)]) found[static_cast<size_t>(rank)] = look(rank);
      }
    }
    return found;
  }

  std::array<LinkWaits, 2> training_{LinkWaits("training", topology_of(0)),
                                     LinkWaits("training", topology_of(1))};
  std::array<LinkWaits, 2> default_{LinkWaits("default", topology_of(0)),
                                    LinkWaits("default", topology_of(1))};
};

TEST_F(LinkWaitsOfTwoRanks, AreFoundOnBoth) {
  enter();
  const auto found = look_for_long();
  ASSERT_TRUE(found[0] && found[1]);
  EXPECT_THAT(
      training_[0].error_for(*found[0], "collective #5", {}).what(),
      AllOf(HasSubstr("collective #5: this rank and rank 1 (pid 7 on host1) wait for each other"),
            HasSubstr("collective #3 barrier() in group 'default'")));
  EXPECT_THAT(default_[1].error_for(*found[1], "collective #3", {}).what(),
              AllOf(HasSubstr("rank 0 (pid 7 on host0)"), HasSubstr("#5 barrier() in group 'tra")));
}

/// As a rank does that finds that its peer has ended.
TEST_F(LinkWaitsOfTwoRanks, TellThatTheyGiveUp) {
  enter();
  Found found;
  for (int i = 0; i < kLooks; ++i) {
    if (!found) found = look(0);
    if (i > kLooks / 2) continue;  // not for long enough to find it by itself
    EXPECT_FALSE(look(1));
  }
  ASSERT_TRUE(found);
  training_[1].end();
  default_[1].end();
  EXPECT_TRUE(look(1));
}

TEST_F(LinkWaitsOfTwoRanks, AreNotFoundSoon) {
  enter();
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(look(0));
    EXPECT_FALSE(look(1));
  }
}

TEST_F(LinkWaitsOfTwoRanks, AreNotFoundIfAGroupIsOver) {
  enter();
  for (LinkWaits& each : default_) each.end();
  EXPECT_FALSE(look_for_long()[0]);
}

TEST_F(LinkWaitsOfTwoRanks, AreNotFoundIfSeveralThreadsCall) {
  std::thread([this] { training_[1].enter(3, barrier()); }).join();
  enter();
  const auto found = look_for_long();
  EXPECT_FALSE(found[0] || found[1]);
}

/// A thread may have been started between two collectives.
TEST_F(LinkWaitsOfTwoRanks, AreLookedForAnewInEachCollective) {
  enter();
  for (int i = 0; i < kLooks / 2; ++i) {
    EXPECT_FALSE(look(0));
    EXPECT_FALSE(look(1));
  }
  training_[0].enter(6, barrier());
  for (int i = 0; i < kLooks / 2; ++i) EXPECT_FALSE(look(0));
}

/// Rank 1 waits for rank 0 in the barrier, and rank 0 for rank 1 to join a new group.
TEST_F(LinkWaitsOfTwoRanks, AreFoundIfOneFormsAGroup) {
  for (LinkWaits& each : default_) each.enter(2, barrier());
  default_[0].note_thread(1, default_[1].thread());
  default_[1].note_thread(0, default_[0].thread());
  default_[1].enter(3, barrier());
  std::array<Found, 2> found;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!(found[0] && found[1]) && std::chrono::steady_clock::now() < until) {
    if (!found[0]) found[0] = training_[0].look_while_forming(all_are_missing);
    const std::string news = training_[0].news_of_formation();
    if (!news.empty()) training_[1].hear(0, news);
    if (!found[1]) found[1] = look(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ASSERT_TRUE(found[0] && found[1]);
  EXPECT_THAT(found[0]->other_call, HasSubstr("collective #3 barrier() in group 'default'"));
  EXPECT_THAT(found[1]->other_call, HasSubstr("a call that forms a group"));
}

/// A thread that has queued a call and goes on may still make the other one.
TEST_F(LinkWaitsOfTwoRanks, AreFoundOnceTheCallerWaitsForAQueuedCall) {
  QueuedCall::Queue queue{"training"};
  const QueuedCall call(queue, 1);
  const QueuedCall::Run run(call);
  enter();
  EXPECT_FALSE(look_for_long()[0]);
  {
    const QueuedCall::Wait of_another_group("default", 1);
    EXPECT_FALSE(look_for_long()[0]);
  }
  const QueuedCall::Wait wait("training", 1);
  EXPECT_TRUE(look_for_long()[0]);
}

TEST_F(LinkWaitsOfTwoRanks, AreNotFoundWhileACallIsQueuedElsewhere) {
  QueuedCall::Queue queue{"another"};
  const auto call = std::make_unique<QueuedCall>(queue, 1);
  enter();
  const auto found = look_for_long();
  EXPECT_FALSE(found[0] || found[1]);
}

/// It has called another thread's calls, whose caller is this one.
TEST(QueuedCall, BelongsToTheThreadThatHasQueuedIt) {
  QueuedCall::Queue queue{"group"};
  const QueuedCall call(queue, 2);
  const uint32_t own = QueuedCall::Caller::this_thread().number;
  std::thread([&] {
    EXPECT_NE(QueuedCall::current_caller().number, own);
    const QueuedCall::Run run(call);
    EXPECT_EQ(QueuedCall::current_caller().number, own);
    EXPECT_FALSE(QueuedCall::is_caller_stuck());
  }).join();
  {
    const QueuedCall::Wait for_an_earlier_one("group", 1);
    EXPECT_FALSE(call.is_awaited());
  }
  const QueuedCall::Wait wait("group", 3);
  EXPECT_TRUE(call.is_awaited());
}

}  // namespace
}  // namespace farandole::comm::hosts
