// SPDX-License-Identifier: Apache-2.0
#include "farandole/comm/signals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "farandole/comm/communicator.h"
#include "farandole/error.h"
#include "support/raised.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

using comm::CollectiveOptions;
using comm::Communicator;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;

const CollectiveOptions kDefault;

/// Each rank writes rounds of numbers into its neighbour's memory; a signal says that a round is
/// there, one back that it was read.
void pass_on(Communicator& group) {
  constexpr size_t kWords = 5000;
  constexpr uint64_t kRounds = 40;
  const int after = (group.rank() + 1) % group.world_size();
  const int before = (group.rank() + group.world_size() - 1) % group.world_size();
  const auto memory = group.shared_memory()->allocate_symmetric(kWords * sizeof(uint64_t));
  const auto written = group.shared_memory()->make_signals();
  const auto read = group.shared_memory()->make_signals();
  auto* target = static_cast<uint64_t*>(memory->peer(after));
  const auto* own = static_cast<const uint64_t*>(memory->local());
  for (uint64_t round = 1; round <= kRounds; ++round) {
    if (round % 20 == 0) std::this_thread::sleep_for(milliseconds(3));  // the peer falls asleep
    for (size_t i = 0; i < kWords; ++i) target[i] = round * kWords + i;
    written->signal(after);
    written->wait(before, kDefault);
    for (size_t i = 0; i < kWords; ++i) ASSERT_EQ(own[i], round * kWords + i);
    read->signal(before);
    read->wait(after, kDefault);
  }
}

TEST(Signals, ShowWhatWasWrittenBeforeThemToThreads) {
  for (const int world_size : {1, 2, 3}) run_thread_ranks(world_size, pass_on);
}

TEST(Signals, ShowWhatWasWrittenBeforeThemToProcesses) {
  for (const int world_size : {1, 2, 4}) run_process_ranks(world_size, pass_on);
}

TEST(Signals, WakeARankThatSleepsAtOnce) {
  run_thread_ranks(2, [](Communicator& group) {
    const auto signals = group.shared_memory()->make_signals();
    for (int i = 0; i < 100; ++i) {
      signals->signal(1 - group.rank());
      signals->wait(1 - group.rank(), {milliseconds(0), /*sleep_at_once=*/true});
    }
  });
}

TEST(Signals, AreCountedAndTakenOnce) {
  run_thread_ranks(3, [](Communicator& group) {
    const auto signals = group.shared_memory()->make_signals();
    if (group.rank() != 0) {
      for (int i = 0; i < 5 * group.rank(); ++i) signals->signal(0);
    } else {
      for (int i = 0; i < 10; ++i) signals->wait(2, kDefault);
      for (int i = 0; i < 5; ++i) signals->wait(1, kDefault);
      signals->signal(0);
      signals->wait(0, kDefault);
    }
    group.barrier();
  });
}

TEST(Signals, AreTakenOnceByManyThreads) {
  run_thread_ranks(2, [](Communicator& group) {
    constexpr int kEach = 200;
    const auto signals = group.shared_memory()->make_signals();
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        for (int n = 0; n < kEach; ++n) {
          if (group.rank() == 0) {
            signals->signal(1);
          } else {
            signals->wait(0, kDefault);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    group.barrier();
    if (group.rank() == 1) raised<CommError>([&] { signals->wait(0, {milliseconds(20)}); });
  });
}

TEST(Signals, TellALateRank) {
  run_thread_ranks(2, [](Communicator& group) {
    const auto signals = group.shared_memory()->make_signals();
    if (group.rank() == 1) {
      EXPECT_THAT(raised<AbortedError>([&] { signals->wait(0, kDefault); }),
                  HasSubstr("rank 0 gave up"));
      return;
    }
    const auto begin = steady_clock::now();
    EXPECT_THAT(raised<TimeoutError>([&] { signals->wait(1, {milliseconds(200)}); }),
                AllOf(HasSubstr("rank 1 (pid "), HasSubstr("200 ms"), HasSubstr("why: ")));
    EXPECT_GE(steady_clock::now() - begin, milliseconds(200));
    raised<AbortedError>([&] { group.barrier(); });
    raised<AbortedError>([&] { signals->signal(1); });
  });
}

TEST(Signals, NameADeadRankWithinASecond) {
  run_process_ranks(2,
                    [](Communicator& group) {
                      const auto signals = group.shared_memory()->make_signals();
                      if (group.rank() == 0) {
                        signals->signal(1);
                        ::raise(SIGKILL);
                      }
                      std::this_thread::sleep_for(milliseconds(100));
                      signals->wait(0, kDefault);  // sent before it died
                      const auto begin = steady_clock::now();
                      EXPECT_THAT(raised<PeerFailure>([&] { signals->wait(0, kDefault); }),
                                  AllOf(HasSubstr("rank 0 (pid "), HasSubstr("fix: ")));
                      EXPECT_LT(steady_clock::now() - begin, detection_limit());
                    },
                    {Config(), {0}});
}

TEST(Signals, AreAbortedWithTheGroup) {
  run_thread_ranks(2, [](Communicator& group) {
    const auto signals = group.shared_memory()->make_signals();
    if (group.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(100));
      group.abort("the test says so");
      return;
    }
    EXPECT_THAT(raised<AbortedError>([&] { signals->wait(0, kDefault); }),
                HasSubstr("the test says so"));
  });
}

TEST(Signals, HaveAPeerInTheGroup) {
  run_thread_ranks(2, [](Communicator& group) {
    const auto signals = group.shared_memory()->make_signals();
    EXPECT_THAT(raised<InvalidArgument>([&] { signals->signal(2); }), HasSubstr("peer=2"));
    EXPECT_THAT(raised<InvalidArgument>([&] { signals->wait(-1, kDefault); }),
                HasSubstr("peer=-1"));
    group.barrier();
  });
}

TEST(SymmetricMemory, IsFoundByAnAddressInIt) {
  run_thread_ranks(2, [](Communicator& group) {
    auto first = group.shared_memory()->allocate_symmetric(1000);
    const auto second = group.shared_memory()->allocate_symmetric(5000);
    EXPECT_NE(first->number(), second->number());
    auto* data = static_cast<std::byte*>(second->local());
    EXPECT_EQ(group.shared_memory()->find_symmetric(data + 4000, 1000), second);
    EXPECT_EQ(group.shared_memory()->find_symmetric(data + 4000, 1001), nullptr);
    EXPECT_EQ(group.shared_memory()->find_symmetric(second->peer(1 - group.rank()), 1), nullptr);
    const void* gone = first->local();
    first.reset();
    EXPECT_EQ(group.shared_memory()->find_symmetric(gone, 1), nullptr);
    group.barrier();
  });
}

}  // namespace
}  // namespace farandole::test
