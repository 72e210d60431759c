// SPDX-License-Identifier: Apache-2.0
// The detector alone: nothing runs, and addresses are numbers.
#include "support/simulated_device/race_detector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/raised.h"
#include "support/simulated_device/errors.h"

namespace farandole::sim {
namespace {

using test::raised;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RaceDetectorTest : public ::testing::Test {
 protected:
  RaceDetectorTest() { detector_.allocate(at(0), 100, main_); }

  static const void* at(uintptr_t offset) { return reinterpret_cast<const void*>(4096 + offset); }
  static Access read(uintptr_t offset = 0, size_t bytes = 100) {
    return {at(offset), bytes, false};
  }
  static Access write(uintptr_t offset = 0, size_t bytes = 100) {
    return {at(offset), bytes, true};
  }

  /// `stream` waits for all that `earlier` has been given.
  void wait(size_t stream, size_t earlier) { detector_.order(stream, detector_.now(earlier)); }

  RaceDetector detector_;
  size_t main_ = detector_.add_stream("main");
  size_t side_ = detector_.add_stream("side");
};

TEST_F(RaceDetectorTest, NamesBothOperationsTheMemoryAndTheFix) {
  detector_.launch(main_, "zero", {write()});
  detector_.launch(main_, "backward", {write(0, 80)});
  const std::string text =
      raised<RaceError>([&] { detector_.launch(side_, "all_reduce", {read(40, 60)}); });
  EXPECT_EQ(text,
            "'all_reduce' (#1 on side) reads what 'backward' (#2 on main) writes.\n"
            "why: no event orders the two streams; bytes [40, 100) of the 100 bytes at 0x1000.\n"
            "fix: record an event on main and let side wait for it.");
  EXPECT_THAT(detector_.take_reports(), ElementsAre(text));
  EXPECT_THAT(detector_.take_reports(), IsEmpty());
}

TEST_F(RaceDetectorTest, AcceptsOperationsOfOneStream) {
  for (int i = 0; i < 3; ++i) {
    detector_.launch(main_, "write", {write()});
    detector_.launch(main_, "read", {read()});
  }
}

TEST_F(RaceDetectorTest, AcceptsReadsSideBySideAndDisjointWrites) {
  detector_.allocate(at(1000), 100, main_);
  detector_.launch(main_, "read", {read(), write(1000, 50)});
  detector_.launch(side_, "read", {read(), write(1050, 50)});
}

TEST_F(RaceDetectorTest, AcceptsWhatAWaitOrders) {
  detector_.launch(main_, "write", {write()});
  wait(side_, main_);
  detector_.launch(side_, "read", {read()});
  wait(main_, side_);
  detector_.launch(main_, "write", {write()});
}

TEST_F(RaceDetectorTest, FollowsOrderThroughAThirdStream) {
  const size_t third = detector_.add_stream("third");
  detector_.launch(main_, "write", {write()});
  wait(third, main_);
  wait(side_, third);
  detector_.launch(side_, "read", {read()});
}

TEST_F(RaceDetectorTest, AcceptsWhatTheHostHasWaitedFor) {
  detector_.launch(main_, "write", {write()});
  detector_.order_host(detector_.now(main_));
  detector_.launch(side_, "write", {write()});
}

TEST_F(RaceDetectorTest, ReportsAWriteAfterAReadOfAnotherStream) {
  detector_.launch(side_, "send", {read()});
  EXPECT_THAT(raised<RaceError>([&] { detector_.launch(main_, "step", {write()}); }),
              HasSubstr("'step' (#1 on main) writes what 'send' (#1 on side) reads"));
}

TEST_F(RaceDetectorTest, ReportsWhatComesAfterTheEventThatWasWaitedFor) {
  detector_.launch(main_, "first", {write()});
  wait(side_, main_);
  detector_.launch(main_, "second", {write()});
  EXPECT_THAT(raised<RaceError>([&] { detector_.launch(side_, "read", {read()}); }),
              HasSubstr("'second' (#2 on main)"));
}

TEST_F(RaceDetectorTest, RemembersAWriteThatReadsOfItsStreamCover) {
  detector_.launch(main_, "write", {write(10, 10)});
  detector_.launch(main_, "read", {read()});
  EXPECT_THAT(raised<RaceError>([&] { detector_.launch(side_, "read", {read()}); }),
              HasSubstr("'write'"));
}

TEST_F(RaceDetectorTest, ForgetsAnOperationThatThrows) {
  detector_.launch(main_, "write", {write()});
  raised<RaceError>([&] { detector_.launch(side_, "read", {read()}); });
  detector_.launch(main_, "write", {write()});
  wait(side_, main_);
  detector_.launch(side_, "read", {read()});
  EXPECT_EQ(detector_.now(side_).at(side_), 1U);
}

TEST_F(RaceDetectorTest, GoesOnAfterAReport) {
  detector_.set_response(RaceDetector::Response::kReport);
  detector_.launch(main_, "write", {write()});
  detector_.launch(side_, "read", {read()});
  detector_.launch(side_, "read", {read()});
  EXPECT_THAT(detector_.take_reports(), SizeIs(2));
}

TEST_F(RaceDetectorTest, ReportsMemoryUsedBeforeItsStreamIsWaitedFor) {
  detector_.launch(main_, "busy", {});
  detector_.allocate(at(1000), 100, main_);
  EXPECT_THAT(raised<RaceError>([&] { detector_.launch(side_, "fill", {write(1000)}); }),
              HasSubstr("'fill' (#1 on side) writes what 'allocation' (#1 on main) writes"));
  wait(side_, main_);
  detector_.launch(side_, "fill", {write(1000)});
}

TEST_F(RaceDetectorTest, ReportsMemoryReleasedWhileAStreamUsesIt) {
  detector_.launch(side_, "send", {read()});
  detector_.release(at(0), {detector_.now(main_)});
  EXPECT_THAT(detector_.take_reports(),
              ElementsAre(AllOf(HasSubstr("released while 'send' (#1 on side) reads it"),
                                HasSubstr("fix: record side for the memory"))));
}

TEST_F(RaceDetectorTest, AcceptsAReleaseAfterThoseWhoUseTheMemory) {
  detector_.launch(side_, "send", {read()});
  detector_.release(at(0), {detector_.now(main_), detector_.now(side_)});
  detector_.allocate(at(0), 100, main_);
  detector_.launch(side_, "send", {read()});
  wait(main_, side_);
  detector_.release(at(0), {detector_.now(main_)});
  EXPECT_THAT(detector_.take_reports(), IsEmpty());
}

TEST_F(RaceDetectorTest, ReportsUseAfterRelease) {
  detector_.release(at(0), {detector_.now(main_)});
  EXPECT_THAT(raised<RaceError>([&] { detector_.launch(main_, "late", {read()}); }),
              HasSubstr("'late' (#1 on main) reads memory that is not allocated"));
}

TEST_F(RaceDetectorTest, ReportsUseBeyondTheEnd) {
  EXPECT_THAT(raised<RaceError>([&] { detector_.launch(main_, "long", {write(60, 50)}); }),
              AllOf(HasSubstr("'long' (#1 on main) writes beyond the end"),
                    HasSubstr("bytes [60, 110) of the 100 bytes")));
}

}  // namespace
}  // namespace farandole::sim
