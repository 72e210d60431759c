// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_device/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

#include "support/forked_child.h"
#include "support/raised.h"
#include "support/simulated_device/device.h"
#include "support/simulated_device/errors.h"
#include "support/simulated_device/no_races.h"

namespace farandole::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using test::raised;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StreamTest : public NoRaces {
 protected:
  Stream& main_ = stream(0, 0);
  Stream& side_ = new_stream(0);
};
INSTANTIATE_TEST_SUITE_P(, StreamTest, kEverySchedule, ::testing::PrintToStringParamName());

TEST_P(StreamTest, RunsKernelsInOrder) {
  std::vector<int> seen;
  for (int i = 0; i < 5; ++i) main_.launch("kernel", {}, [&seen, i] { seen.push_back(i); });
  main_.synchronize();
  EXPECT_THAT(seen, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_TRUE(main_.query());
}

TEST_P(StreamTest, LetsTheHostGoOn) {
  std::promise<void> go;
  main_.launch("kernel", {}, [&] { go.get_future().wait(); });
  EXPECT_FALSE(main_.query());
  go.set_value();
  main_.synchronize();
}

TEST_P(StreamTest, WaitsForAnEventOfAnother) {
  int value = 0;
  int seen = -1;
  main_.launch("write", {}, [&] {
    std::this_thread::sleep_for(milliseconds(2));
    value = 1;
  });
  Event written;
  written.record(main_);
  side_.wait(written);
  side_.launch("read", {}, [&] { seen = value; });
  side_.synchronize();
  EXPECT_EQ(seen, 1);
}

TEST_P(StreamTest, WaitsForAnEventAsItWas) {
  std::promise<void> go;
  Event event;
  event.record(main_);
  side_.wait(event);
  main_.launch("kernel", {}, [&] { go.get_future().wait(); });
  event.record(main_);
  side_.synchronize();
  EXPECT_FALSE(event.query());
  go.set_value();
  event.synchronize();
  EXPECT_TRUE(event.query());
}

TEST_P(StreamTest, GoesOnWhenItIsPolled) {
  main_.launch("kernel", {}, [] {});
  Event done;
  done.record(main_);
  side_.wait(done);
  while (!side_.query()) std::this_thread::yield();
}

TEST_P(StreamTest, CountsAnUnrecordedEventAsDone) {
  const Event event;
  side_.wait(event);
  event.synchronize();
  EXPECT_TRUE(event.query());
}

TEST_P(StreamTest, MeasuresTimeBetweenEvents) {
  Event begin;
  Event end;
  begin.record(main_);
  main_.launch("kernel", {}, [] { std::this_thread::sleep_for(milliseconds(3)); });
  end.record(main_);
  end.synchronize();
  EXPECT_GE(end.since(begin).count(), 3.0);
}

TEST_P(StreamTest, CountsWaitsOfTheHost) {
  main_.launch("kernel", {}, [] {});
  Event done;
  done.record(main_);
  side_.wait(done);
  const uint64_t before = host_waits();
  while (!done.query()) std::this_thread::yield();
  EXPECT_EQ(host_waits(), before);
  main_.synchronize();
  done.synchronize();
  EXPECT_EQ(host_waits(), before + 2);
}

TEST_P(StreamTest, FailsForGoodWithAKernel) {
  Stream& other = stream(1, 0);
  bool has_run = false;
  std::promise<void> go;
  main_.launch("gather", {}, [&] {
    go.get_future().wait();
    throw std::out_of_range("index 7");
  });
  main_.launch("next", {}, [&] { has_run = true; });
  go.set_value();
  EXPECT_THAT(raised<DeviceError>([&] { main_.synchronize(); }),
              AllOf(HasSubstr("sim:0 has failed"), HasSubstr("'gather' failed: index 7")));
  raised<DeviceError>([&] { side_.launch("kernel", {}, [] {}); });
  raised<DeviceError>([&] { side_.synchronize(); });
  raised<DeviceError>([&] { main_.query(); });
  EXPECT_FALSE(has_run);
  other.launch("kernel", {}, [] {});
  other.synchronize();
  reset_device(0);
  main_.launch("kernel", {}, [&] { has_run = true; });
  main_.synchronize();
  EXPECT_TRUE(has_run);
}

TEST(Schedules, LazyRunsAKernelWhenItIsWaitedFor) {
  set_schedule(Schedule::kLazy);
  std::atomic<int> runs{0};
  Stream& lazy = stream(0, 0);
  for (int i = 0; i < 2; ++i) lazy.launch("kernel", {}, [&] { ++runs; });
  Event both;
  both.record(lazy);
  lazy.launch("kernel", {}, [&] { ++runs; });
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(runs, 0);
  Stream& side = new_stream(0);
  side.wait(both);
  side.synchronize();
  EXPECT_EQ(runs, 2);
  lazy.synchronize();
  EXPECT_EQ(runs, 3);
}

TEST(Schedules, SlowDelaysKernelsOfItsStreams) {
  for (const Schedule slow : {Schedule::kSlowDefault, Schedule::kSlowSide}) {
    set_schedule(slow);
    Stream& delayed = slow == Schedule::kSlowDefault ? stream(0, 0) : new_stream(0);
    const auto launched = steady_clock::now();
    steady_clock::time_point run;
    delayed.launch("kernel", {}, [&] { run = steady_clock::now(); });
    delayed.synchronize();
    EXPECT_GE(run - launched, microseconds(100)) << slow;
  }
}

TEST(Devices, AreCurrentByThread) {
  set_current_device(2);
  std::thread([] { EXPECT_EQ(current_device(), 0); }).join();
  EXPECT_EQ(current_device(), 2);
  set_current_device(0);
}

TEST(Devices, HaveADefaultStreamAndOthers) {
  Stream& made = new_stream(3);
  EXPECT_EQ(made.device(), 3);
  EXPECT_EQ(&stream(3, made.id()), &made);
  EXPECT_EQ(stream(3, 0).id(), 0);
  EXPECT_NE(&stream(3, 0), &made);
}

// In a process of its own, as CTest runs it.
TEST(Fork, IsPossibleBeforeTheFirstKernel) {
  Stream& made = new_stream(0);
  test::ForkedChild child([&] {
    int value = 0;
    made.launch("kernel", {}, [&] { value = 1; });
    made.synchronize();
    return value == 1;
  });
  EXPECT_TRUE(child.succeeded());
}

TEST(Fork, LeavesNoDeviceToTheChildAfterTheFirstKernel) {
  Stream& used = stream(0, 0);
  used.launch("kernel", {}, [] {});
  used.synchronize();
  test::ForkedChild child([&] {
    const std::string text = raised<DeviceError>([&] { used.launch("kernel", {}, [] {}); });
    raised<DeviceError>([&] { used.synchronize(); });
    return text.find("fix: fork before the first use of a device") != std::string::npos;
  });
  EXPECT_TRUE(child.succeeded());
}

}  // namespace
}  // namespace farandole::sim
