// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_device/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "support/raised.h"
#include "support/simulated_device/device.h"
#include "support/simulated_device/errors.h"
#include "support/simulated_device/no_races.h"

namespace farandole::sim {
namespace {

using test::raised;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr size_t kBytes = 1000;

class MemoryTest : public NoRaces {
 protected:
  /// A kernel on `on` that ends when the test says so.
  void hold(Stream& on) {
    on.launch("hold", {}, [released = go_.get_future().share()] { released.wait(); });
  }
  void let_go() { go_.set_value(); }

  /// Allocates until it gets `address` or has given the reaper a second for it.
  std::vector<void*> allocate_until(const void* address) {
    std::vector<void*> all;
    do {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      all.push_back(allocate(main_, kBytes));
    } while (all.back() != address && all.size() < 1000);
    return all;
  }
  static void release_all(const std::vector<void*>& all) {
    for (void* each : all) release(each);
  }

  Stream& main_ = stream(0, 0);
  Stream& side_ = new_stream(0);
  std::promise<void> go_;
};
INSTANTIATE_TEST_SUITE_P(, MemoryTest, kEverySchedule, ::testing::PrintToStringParamName());

TEST_P(MemoryTest, IsWrittenAndReadByKernels) {
  auto* data = static_cast<int*>(allocate(main_, kBytes));
  int seen = 0;
  main_.launch("write", {{data, kBytes, true}}, [=] { *bytes_of(data) = 7; });
  main_.launch("read", {{data, kBytes, false}}, [=, &seen] { seen = *bytes_of(data); });
  main_.synchronize();
  EXPECT_EQ(seen, 7);
  release(data);
}

TEST_P(MemoryTest, IsPoisonedUntilItIsWritten) {
  auto* data = static_cast<int32_t*>(allocate(main_, kBytes));
  int32_t seen = 0;
  main_.launch("read", {{data, kBytes, false}}, [=, &seen] { seen = bytes_of(data)[100]; });
  main_.synchronize();
  EXPECT_EQ(seen, -1);
  release(data);
}

TEST_P(MemoryTest, IsUsedAgainPoisoned) {
  auto* data = static_cast<int32_t*>(allocate(main_, kBytes));
  main_.launch("write", {{data, kBytes, true}}, [=] { *bytes_of(data) = 7; });
  main_.synchronize();
  release(data);
  const std::vector<void*> taken = allocate_until(data);
  EXPECT_EQ(taken.back(), data);
  main_.launch("read", {{data, kBytes, false}}, [=] { EXPECT_EQ(*bytes_of(data), -1); });
  main_.synchronize();
  release_all(taken);
}

TEST_P(MemoryTest, IsNotUsedAgainWhileItsStreamIsBusy) {
  hold(main_);
  void* data = allocate(main_, kBytes);
  release(data);
  void* next = allocate(main_, kBytes);
  EXPECT_NE(next, data);
  let_go();
  main_.synchronize();
  release(next);
}

TEST_P(MemoryTest, IsNotUsedAgainWhileARecordedStreamIsBusy) {
  void* data = allocate(main_, kBytes);
  hold(side_);
  side_.launch("read", {{data, kBytes, false}}, [] {});
  record_stream(data, side_);
  release(data);
  void* next = allocate(main_, kBytes);
  EXPECT_NE(next, data);
  let_go();
  side_.synchronize();
  release(next);
  const std::vector<void*> taken = allocate_until(data);
  EXPECT_EQ(taken.back(), data);
  release_all(taken);
}

TEST_P(MemoryTest, MustBeRecordedForTheStreamsThatUseIt) {
  void* data = allocate(main_, kBytes);
  side_.launch("send", {{data, kBytes, false}}, [] {});
  release(data);
  EXPECT_THAT(race_detector().take_reports(),
              ElementsAre(HasSubstr("memory is released while 'send'")));
}

TEST_P(MemoryTest, MayBeReleasedByAThreadThatSawItsUsersEnd) {
  void* data = allocate(main_, kBytes);
  side_.launch("send", {{data, kBytes, false}}, [] {});
  Event sent;
  sent.record(side_);
  std::thread watchdog([&] {
    while (!sent.query()) std::this_thread::yield();
    release(data);
  });
  watchdog.join();
  EXPECT_THAT(race_detector().take_reports(), IsEmpty());
}

TEST_P(MemoryTest, OfAnIdleStreamIsForAllStreamsUntilTheHostHasWaited) {
  main_.launch("forward", {}, nullptr);
  for (const bool waits : {true, false}) {
    void* data = allocate(new_stream(0), kBytes);
    main_.launch("write", {{data, kBytes, true}}, nullptr);
    if (waits) main_.synchronize();
    release(data);
    EXPECT_EQ(race_detector().take_reports().empty(), waits);
  }
}

TEST_P(MemoryTest, MustBeAllocatedWhenAKernelIsLaunched) {
  void* data = allocate(main_, kBytes);
  release(data);
  EXPECT_THAT(raised<RaceError>([&] {
                main_.launch("late", {{data, 8, true}}, [] {});
              }),
              HasSubstr("memory that is not allocated"));
  race_detector().take_reports();
}

TEST_P(MemoryTest, MustBeLargeEnough) {
  void* data = allocate(main_, kBytes);
  raised<RaceError>([&] { main_.launch("long", {{data, kBytes + 1, true}}, [] {}); });
  EXPECT_THAT(race_detector().take_reports(), ElementsAre(HasSubstr("beyond the end")));
  release(data);
}

TEST(Memory, CannotBeFollowedByTheHost) {
  auto* data = static_cast<volatile int*>(allocate(stream(0, 0), kBytes));
  EXPECT_DEATH(*data = 1, "");
  EXPECT_DEATH(static_cast<void>(*data), "");
}

TEST(Memory, IsKnownByItsAddresses) {
  const size_t before = bytes_in_use(2);
  auto* data = static_cast<char*>(allocate(stream(2, 0), kBytes));
  EXPECT_TRUE(is_device_address(data));
  EXPECT_FALSE(is_device_address(&before));
  EXPECT_EQ(device_of(data + kBytes - 1), 2);
  EXPECT_EQ(device_of(data + kBytes), -1);
  EXPECT_EQ(device_of(&before), -1);
  EXPECT_EQ(bytes_in_use(2), before + kBytes);
  release(data);
  EXPECT_EQ(bytes_in_use(2), before);
  EXPECT_EQ(device_of(data), -1);
}

TEST(Memory, IsNullForNoBytes) {
  EXPECT_EQ(allocate(stream(0, 0), 0), nullptr);
  release(nullptr);
}

TEST(Memory, RunsOut) {
  EXPECT_THAT(raised<DeviceError>([] { allocate(stream(0, 0), size_t{1} << 40); }),
              HasSubstr("out of memory"));
}

TEST(Memory, IsReleasedOnce) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // a forked child releases nothing
  int other = 0;
  EXPECT_DEATH(release(&other), "nothing is allocated there");
}

}  // namespace
}  // namespace farandole::sim
