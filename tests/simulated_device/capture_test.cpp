// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_device/capture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/raised.h"
#include "support/simulated_device/device.h"
#include "support/simulated_device/errors.h"
#include "support/simulated_device/graph.h"
#include "support/simulated_device/memory.h"
#include "support/simulated_device/no_races.h"
#include "support/simulated_device/stream.h"

namespace farandole::sim {
namespace {

using test::raised;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr size_t kBytes = 256;

class CaptureTest : public NoRaces {
 protected:
  CaptureTest() { synchronize_device(0); }

  static void order(Stream& earlier, Stream& later) {
    Event event;
    event.record(earlier);
    later.wait(event);
  }

  static void touch(Stream& on, const char* kernel, void* data, bool writes) {
    on.launch(kernel, {{data, kBytes, writes}}, nullptr);
  }
  /// Writes, and notes `value`.
  void launch(Stream& on, const char* kernel, void* data, int value) {
    on.launch(kernel, {{data, kBytes, true}}, [this, value] { seen_.push_back(value); });
  }

  /// Ends the capture of `origin_`, which has no graph; returns the text.
  std::string end_without_graph() {
    const std::string text = raised<CaptureError>([&] { origin_.end_capture(); });
    EXPECT_EQ(origin_.capture_status(), CaptureStatus::kNone);
    EXPECT_EQ(side_.capture_status(), CaptureStatus::kNone);
    return text;
  }
  /// `call` fails in a capture of `origin_`, which has no graph then.
  void expect_refused(const char* error, const std::function<void()>& call) {
    origin_.begin_capture();
    EXPECT_THAT(raised<CaptureError>(call), HasSubstr(error));
    EXPECT_EQ(origin_.capture_status(), CaptureStatus::kInvalid);
    EXPECT_THAT(raised<CaptureError>([&] { origin_.launch("late", {}, nullptr); }),
                HasSubstr("cudaErrorStreamCaptureInvalidated"));
    EXPECT_THAT(end_without_graph(), HasSubstr("cudaErrorStreamCaptureInvalidated"));
    origin_.launch("kernel", {}, nullptr);
    origin_.synchronize();
  }

  Stream& main_ = stream(0, 0);
  Stream& origin_ = new_stream(0);
  Stream& side_ = new_stream(0);
  std::vector<int> seen_;  ///< values of kernels in one order
};
INSTANTIATE_TEST_SUITE_P(, CaptureTest, kEverySchedule, ::testing::PrintToStringParamName());

TEST_P(CaptureTest, RunsAtReplaysAlone) {
  int runs = 0;
  origin_.begin_capture();
  origin_.launch("kernel", {}, [&] { ++runs; });
  EXPECT_EQ(origin_.capture_status(), CaptureStatus::kActive);
  const std::shared_ptr<Graph> graph = origin_.end_capture();
  EXPECT_EQ(origin_.capture_status(), CaptureStatus::kNone);
  synchronize_device(0);
  EXPECT_EQ(runs, 0);
  for (int replays = 1; replays <= 3; ++replays) {
    graph->replay(main_);
    main_.synchronize();
    EXPECT_EQ(runs, replays);
  }
}

TEST_P(CaptureTest, RunsBetweenWhatTheStreamHasAndWillHave) {
  void* data = allocate(main_, kBytes);
  main_.synchronize();
  origin_.begin_capture();
  launch(origin_, "captured", data, 2);
  const auto graph = origin_.end_capture();
  for (int round = 0; round < 2; ++round) {
    launch(main_, "before", data, 1);
    graph->replay(main_);
    launch(main_, "after", data, 3);
  }
  main_.synchronize();
  EXPECT_THAT(seen_, ElementsAre(1, 2, 3, 1, 2, 3));
  release(data);
}

TEST_P(CaptureTest, ReplaysOneAfterTheOther) {
  void* data = allocate(main_, kBytes);
  main_.synchronize();
  origin_.begin_capture();
  touch(origin_, "captured", data, true);
  const auto graph = origin_.end_capture();
  graph->replay(main_);
  graph->replay(side_);
  side_.synchronize();
  main_.synchronize();
  release(data);
}

TEST_P(CaptureTest, HoldsStreamsThatWaitForIt) {
  void* data = allocate(main_, kBytes);
  main_.synchronize();
  side_.launch("before", {}, nullptr);
  origin_.begin_capture();
  launch(origin_, "first", data, 1);
  order(origin_, side_);
  EXPECT_EQ(side_.capture_status(), CaptureStatus::kActive);
  launch(side_, "second", data, 2);
  order(side_, origin_);
  launch(origin_, "third", data, 3);
  const auto graph = origin_.end_capture();
  EXPECT_EQ(side_.capture_status(), CaptureStatus::kNone);
  graph->replay(main_);
  graph->replay(main_);
  main_.synchronize();
  EXPECT_THAT(seen_, ElementsAre(1, 2, 3, 1, 2, 3));
  side_.launch("after", {}, nullptr);
  side_.synchronize();
  release(data);
}

TEST_P(CaptureTest, WaitsForNothingOnTheHost) {
  const uint64_t before = host_waits();
  origin_.begin_capture();
  origin_.launch("kernel", {}, nullptr);
  order(origin_, side_);
  order(side_, origin_);
  origin_.end_capture()->replay(main_);
  EXPECT_EQ(host_waits(), before);
}

TEST_P(CaptureTest, ReportsALackingWaitBetweenCapturedStreams) {
  race_detector().set_response(RaceDetector::Response::kReport);
  void* data = allocate(main_, kBytes);
  main_.synchronize();
  origin_.begin_capture();
  order(origin_, side_);
  touch(origin_, "backward", data, true);
  touch(side_, "all_reduce", data, false);
  order(side_, origin_);
  const auto graph = origin_.end_capture();
  EXPECT_THAT(race_detector().take_reports(), IsEmpty());
  graph->replay(main_);
  main_.synchronize();
  EXPECT_THAT(race_detector().take_reports(),
              ElementsAre(AllOf(HasSubstr("'all_reduce' ("), HasSubstr("what 'backward' ("))));
  graph->replay(main_);
  main_.synchronize();
  EXPECT_THAT(race_detector().take_reports(), ::testing::Not(IsEmpty()));
  release(data);
}

TEST_P(CaptureTest, ReportsARaceWithOtherStreams) {
  race_detector().set_response(RaceDetector::Response::kReport);
  void* data = allocate(main_, kBytes);
  main_.synchronize();
  origin_.begin_capture();
  touch(origin_, "captured", data, true);
  const auto graph = origin_.end_capture();
  graph->replay(main_);
  touch(origin_, "read", data, false);  // that it was captured there orders nothing
  synchronize_device(0);
  EXPECT_THAT(race_detector().take_reports(),
              ElementsAre(AllOf(HasSubstr("'read' ("), HasSubstr("what 'captured' ("))));
  release(data);
}

TEST_P(CaptureTest, RefusesWaitsOfTheHost) {
  Event event;
  const auto record = [&] { event.record(origin_); };
  const char* captured = "cudaErrorCapturedEvent";
  const char* unsupported = "cudaErrorStreamCaptureUnsupported";
  expect_refused(unsupported, [&] { origin_.synchronize(); });
  expect_refused(unsupported, [&] { origin_.query(); });
  expect_refused(unsupported, [&] { synchronize_device(0); });
  expect_refused(captured, [&] { record(), event.synchronize(); });
  expect_refused(captured, [&] { record(), event.query(); });
  EXPECT_THAT(raised<CaptureError>([&] { event.query(); }), HasSubstr(captured));
  EXPECT_THAT(raised<CaptureError>([&] { main_.wait(event); }), HasSubstr(captured));
}

TEST_P(CaptureTest, RefusesOrderWithWhatIsNotCaptured) {
  Event before;
  before.record(main_);
  expect_refused("cudaErrorStreamCaptureIsolation", [&] { origin_.wait(before); });
  before.record(origin_);
  expect_refused("cudaErrorStreamCaptureIsolation", [&] { origin_.wait(before); });
  expect_refused("cudaErrorStreamCaptureIsolation", [&] {
    order(origin_, side_);
    side_.wait(before);
  });
  const Event never_recorded;
  origin_.begin_capture();
  origin_.wait(never_recorded);
  origin_.end_capture();
}

TEST_P(CaptureTest, RefusesStreamsThatAreNotJoined) {
  origin_.begin_capture();
  order(origin_, side_);
  order(side_, origin_);
  side_.launch("late", {}, nullptr);
  EXPECT_THAT(end_without_graph(),
              AllOf(HasSubstr("cudaErrorStreamCaptureUnjoined"), HasSubstr("'late' on sim:0")));
  side_.launch("kernel", {}, nullptr);
  side_.synchronize();
}

TEST_P(CaptureTest, RefusesToMergeTwoCaptures) {
  side_.begin_capture();
  Event of_other;
  of_other.record(side_);
  origin_.begin_capture();
  EXPECT_THAT(raised<CaptureError>([&] { origin_.wait(of_other); }),
              HasSubstr("cudaErrorStreamCaptureMerge"));
  raised<CaptureError>([&] { side_.end_capture(); });
  end_without_graph();
}

TEST_P(CaptureTest, BeginsAndEndsOnOneStreamAndThread) {
  EXPECT_THAT(raised<CaptureError>([&] { main_.begin_capture(); }), HasSubstr("default stream"));
  EXPECT_THAT(raised<CaptureError>([&] { origin_.end_capture(); }), HasSubstr("is not captured"));
  expect_refused("cudaErrorIllegalState", [&] { origin_.begin_capture(); });
  expect_refused("cudaErrorStreamCaptureUnmatched", [&] {
    order(origin_, side_);
    side_.end_capture();
  });
  expect_refused("cudaErrorStreamCaptureWrongThread", [&] {
    std::string text;
    std::thread([&] { text = raised<CaptureError>([&] { origin_.end_capture(); }); }).join();
    throw CaptureError(text);
  });
  const auto graph = [&] {
    origin_.begin_capture();
    return origin_.end_capture();
  }();
  origin_.begin_capture();
  EXPECT_THAT(raised<CaptureError>([&] { graph->replay(origin_); }),
              HasSubstr("cannot replay a graph"));
  origin_.end_capture();
}

TEST_P(CaptureTest, ForbidsQueriesToThreadsByTheirMode) {
  Event done;
  done.record(main_);
  const auto forbids = [&](CaptureMode of_capture, CaptureMode of_thread) {
    bool was_refused = false;
    origin_.begin_capture(of_capture);
    std::thread([&] {
      exchange_capture_mode(of_thread);
      try {
        done.query();
      } catch (const CaptureError&) {
        was_refused = true;
      }
    }).join();
    EXPECT_EQ(origin_.capture_status() == CaptureStatus::kInvalid, was_refused);
    was_refused ? static_cast<void>(end_without_graph()) : static_cast<void>(origin_.end_capture());
    return was_refused;
  };
  EXPECT_TRUE(forbids(CaptureMode::kGlobal, CaptureMode::kGlobal));
  EXPECT_FALSE(forbids(CaptureMode::kGlobal, CaptureMode::kThreadLocal));
  EXPECT_FALSE(forbids(CaptureMode::kThreadLocal, CaptureMode::kGlobal));
  EXPECT_FALSE(forbids(CaptureMode::kRelaxed, CaptureMode::kGlobal));
  exchange_capture_mode(CaptureMode::kThreadLocal);
  expect_refused("cudaErrorStreamCaptureUnsupported", [&] { done.query(); });
  EXPECT_EQ(exchange_capture_mode(CaptureMode::kRelaxed), CaptureMode::kThreadLocal);
  origin_.begin_capture();
  done.query();
  origin_.end_capture();
  exchange_capture_mode(CaptureMode::kGlobal);
}

TEST_P(CaptureTest, KeepsItsMemoryForReplays) {
  const size_t before = bytes_in_use(0);
  origin_.begin_capture();
  void* data = allocate(origin_, kBytes);
  touch(origin_, "write", data, true);
  touch(origin_, "read", data, false);
  release(data);
  auto graph = origin_.end_capture();
  EXPECT_EQ(bytes_in_use(0), before);
  for (int replay = 0; replay < 3; ++replay) {
    void* other = allocate(main_, kBytes);
    EXPECT_NE(other, data);
    graph->replay(main_);
    release(other);
  }
  main_.synchronize();
  EXPECT_EQ(device_of(data), 0);
  graph.reset();
  EXPECT_EQ(device_of(data), -1);
}

TEST_P(CaptureTest, LeavesMemoryThatIsStillUsed) {
  origin_.begin_capture();
  void* result = allocate(origin_, kBytes);
  touch(origin_, "write", result, true);
  origin_.end_capture()->replay(main_);
  touch(main_, "read", result, false);  // the graph is gone
  release(result);
}

TEST_P(CaptureTest, ReportsMemoryThatIsReleasedWhileACapturedStreamUsesIt) {
  race_detector().set_response(RaceDetector::Response::kReport);
  for (const bool is_recorded : {true, false}) {
    origin_.begin_capture();
    void* data = allocate(origin_, kBytes);
    touch(origin_, "backward", data, true);
    order(origin_, side_);
    touch(side_, "all_reduce", data, false);
    if (is_recorded) record_stream(data, side_);
    release(data);
    order(side_, origin_);
    const auto graph = origin_.end_capture();
    graph->replay(main_);
    main_.synchronize();
    const std::vector<std::string> reports = race_detector().take_reports();
    if (is_recorded) {
      EXPECT_THAT(reports, IsEmpty());
    } else {
      EXPECT_THAT(reports,
                  ElementsAre(AllOf(HasSubstr("'release' ("), HasSubstr("what 'all_reduce' ("))));
    }
  }
}

TEST_P(CaptureTest, ReleasesItsMemoryWithoutAGraph) {
  origin_.begin_capture();
  void* data = allocate(origin_, kBytes);
  raised<CaptureError>([&] { origin_.synchronize(); });
  void* late = allocate(origin_, kBytes);
  end_without_graph();
  EXPECT_EQ(device_of(data), 0);
  release(data);
  release(late);
  EXPECT_EQ(device_of(data), -1);
  EXPECT_EQ(device_of(late), -1);
}

TEST_P(CaptureTest, RunsKernelsOfAnOrderAsTheyAreLaunched) {
  const auto in_turn = std::make_shared<LaunchOrder>();
  const auto launch_in_turn = [&](Stream& on, int value) {
    on.launch(
        "in turn", {}, [this, value] { seen_.push_back(value); }, in_turn);
  };
  origin_.begin_capture();
  launch_in_turn(origin_, 2);
  order(origin_, side_);
  launch_in_turn(side_, 3);
  order(side_, origin_);
  const auto graph = origin_.end_capture();
  Stream& third = new_stream(0);
  for (int round = 0; round < 2; ++round) {
    launch_in_turn(third, 1);
    graph->replay(main_);
    launch_in_turn(third, 4);
  }
  in_turn->await_last();
  EXPECT_THAT(seen_, ElementsAre(1, 2, 3, 4, 1, 2, 3, 4));
}

TEST_P(CaptureTest, IsKnownToWhoAsksTheRuntime) {
  const auto status = [&] {
    int found = -1;
    EXPECT_EQ(simStreamIsCapturing(&origin_, &found), 0);
    return found;
  };
  EXPECT_EQ(status(), 0);
  origin_.begin_capture();
  EXPECT_EQ(status(), 1);
  raised<CaptureError>([&] { origin_.query(); });
  EXPECT_EQ(status(), 2);
  end_without_graph();
  int mode = 1;
  EXPECT_EQ(simThreadExchangeStreamCaptureMode(&mode), 0);
  EXPECT_EQ(mode, 0);
  simThreadExchangeStreamCaptureMode(&mode);
  EXPECT_EQ(mode, 1);
}

}  // namespace
}  // namespace farandole::sim
