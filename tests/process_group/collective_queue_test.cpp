// SPDX-License-Identifier: Apache-2.0
#include "process_group/collective_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "farandole/error.h"
#include "support/no_more_threads.h"
#include "support/raised.h"
#include "support/ranks.h"

namespace farandole {
namespace {

using std::chrono::milliseconds;

/// The grace of close() where tasks refer to variables of the test.
constexpr std::chrono::minutes kUntilAllHaveRun{5};

TEST(CollectiveQueue, LetsTheCallerRunWhenNothingIsAhead) {
  CollectiveQueue queue("default");
  EXPECT_EQ(queue.try_begin(), 1u);
  EXPECT_TRUE(queue.busy());
  queue.end();
  EXPECT_EQ(queue.try_begin(), 2u);
  queue.end();
  EXPECT_FALSE(queue.busy());
  EXPECT_EQ(queue.issued(), 2u);
}

TEST(CollectiveQueue, GivesOneTurnAtATime) {
  std::promise<void> ran;
  CollectiveQueue queue("default");
  ASSERT_EQ(queue.try_begin(), 1u);
  EXPECT_EQ(queue.try_begin(), 0u);
  EXPECT_EQ(queue.push([&] { ran.set_value(); }), 2u);
  auto future = ran.get_future();
  EXPECT_EQ(future.wait_for(milliseconds(50)), std::future_status::timeout);
  EXPECT_EQ(queue.try_begin(), 0u);  // one is queued
  queue.end();
  future.wait();
}

TEST(CollectiveQueue, QueuesNothingWhereItsThreadCannotStart) {
  std::promise<void> ran;
  CollectiveQueue queue("default");
  {
    const test::NoMoreThreads limit;
    const std::string text = test::raised<SystemError>([&] { queue.push([] {}); });
    EXPECT_NE(text.find("starting a thread for asynchronous collectives failed"),
              std::string::npos);
    EXPECT_FALSE(queue.busy());
  }
  EXPECT_EQ(queue.push([&] { ran.set_value(); }), 1u);
  ran.get_future().wait();
}

TEST(CollectiveQueue, IsNotBusyWithTheLastLinesOfATask) {
  std::promise<void> ended;
  std::promise<void> go;
  CollectiveQueue queue("default");
  queue.push([&, wait = go.get_future().share()] {
    queue.collective_ended();
    ended.set_value();
    wait.wait();
  });
  ended.get_future().wait();
  EXPECT_FALSE(queue.busy());
  EXPECT_EQ(queue.try_begin(), 0u);  // the turn is not back yet
  go.set_value();
}

TEST(CollectiveQueue, RunsTasksInOrderOnOneOtherThread) {
  CollectiveQueue queue("default");
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  for (int i = 0; i < 100; ++i) {
    queue.push([&, i] {
      order.push_back(i);
      threads.push_back(std::this_thread::get_id());
    });
  }
  queue.close(kUntilAllHaveRun);
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  for (const auto& thread : threads) EXPECT_EQ(thread, threads.front());
  EXPECT_NE(threads.front(), std::this_thread::get_id());
}

TEST(CollectiveQueue, NeverRunsTwoAtOnceWhenManyThreadsIssue) {
  CollectiveQueue queue("default");
  std::atomic<int> inside{0};
  std::atomic<int> done{0};
  const auto collective = [&] {
    EXPECT_EQ(inside.fetch_add(1), 0);
    std::this_thread::yield();
    inside.fetch_sub(1);
    done.fetch_add(1);
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        if (queue.try_begin() != 0) {
          collective();
          queue.end();
        } else {
          queue.push(collective);
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  queue.close(kUntilAllHaveRun);
  EXPECT_EQ(done.load(), 800);
  EXPECT_EQ(queue.issued(), 800u);
}

TEST(CollectiveQueue, LetsATaskIssueCollectivesItself) {
  std::promise<void> queued;
  std::promise<void> done;
  CollectiveQueue queue("default");
  std::vector<int> order;
  queue.push([&] {
    order.push_back(1);
    queued.get_future().wait();
    EXPECT_NE(queue.try_begin(), 0u);  // runs what is queued first
    order.push_back(3);
    queue.end();
    done.set_value();
  });
  queue.push([&] { order.push_back(2); });
  queued.set_value();
  done.get_future().wait();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(CollectiveQueue, RefusesCallsAfterCloseAndStillRunsWhatIsQueued) {
  CollectiveQueue queue("tp");
  std::atomic<int> ran{0};
  for (int i = 0; i < 10; ++i) queue.push([&] { ran.fetch_add(1); });
  queue.close(kUntilAllHaveRun);
  EXPECT_EQ(ran.load(), 10);
  EXPECT_THROW(queue.try_begin(), AbortedError);
  EXPECT_THROW(queue.push([] {}), AbortedError);
  queue.close();  // harmless
}

TEST(CollectiveQueue, DoesNotWaitForAnExecutorThatCannotEnd) {
  auto queue = std::make_unique<CollectiveQueue>("default");
  std::promise<void> release;
  const auto released = release.get_future().share();
  auto ended = std::make_shared<std::promise<void>>();
  queue->push([released, ended] {
    released.wait();
    ended->set_value();
  });
  const auto begin = std::chrono::steady_clock::now();
  queue->close(milliseconds(100));
  EXPECT_LT(std::chrono::steady_clock::now() - begin,
            milliseconds(500) + farandole::test::detection_limit());
  queue.reset();
  release.set_value();
  ended->get_future().wait();
}

TEST(CollectiveQueue, MayBeDestroyedByItsOwnTask) {
  auto queue = std::make_shared<CollectiveQueue>("default");
  auto gone = std::make_shared<std::promise<void>>();
  auto issued = std::make_shared<std::promise<void>>();
  CollectiveQueue* raw = queue.get();
  raw->push([queue, gone, ready = issued->get_future().share()]() mutable {
    ready.wait();
    queue.reset();
    gone->set_value();
  });
  queue.reset();
  issued->set_value();
  gone->get_future().wait();
}

}  // namespace
}  // namespace farandole
