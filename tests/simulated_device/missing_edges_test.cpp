// SPDX-License-Identifier: Apache-2.0
// Each way to forget an order between streams is reported under every schedule, and nothing is
// reported once the order is there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <thread>
#include <tuple>

#include "support/simulated_device/device.h"
#include "support/simulated_device/memory.h"
#include "support/simulated_device/no_races.h"
#include "support/simulated_device/race_detector.h"
#include "support/simulated_device/schedule.h"

namespace farandole::sim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Streams that share a buffer, in a program that may lack one edge.
struct Program {
  static constexpr size_t kBytes = 256;

  void launch(Stream& on, const char* kernel, bool writes, size_t offset = 0,
              size_t bytes = kBytes) {
    on.launch(kernel, {{buffer + offset, bytes, writes}}, nullptr);
  }
  void read(Stream& on, const char* kernel) { launch(on, kernel, false); }
  void write(Stream& on, const char* kernel) { launch(on, kernel, true); }

  static void order(Stream& earlier, Stream& later) {
    Event event;
    event.record(earlier);
    later.wait(event);
  }
  void order_unless_left_out(Stream& earlier, Stream& later) {
    if (!lacks_edge) order(earlier, later);
  }

  bool lacks_edge;
  Stream& main = stream(0, 0);
  Stream& side = new_stream(0);
  Stream& third = new_stream(0);
  char* buffer = static_cast<char*>(allocate(main, kBytes));
};

void reduce_after_backward(Program& p) {
  p.write(p.main, "backward");
  p.order_unless_left_out(p.main, p.side);
  p.write(p.side, "all_reduce");
}

void update_after_reduction(Program& p) {
  p.write(p.side, "all_reduce");
  p.order_unless_left_out(p.side, p.main);
  p.read(p.main, "update");
}

void overwrite_after_sending(Program& p) {
  p.read(p.side, "send");
  p.order_unless_left_out(p.side, p.main);
  p.write(p.main, "backward");
}

void overwrite_after_two_readers(Program& p) {
  p.read(p.side, "send");
  p.read(p.third, "save");
  Program::order(p.side, p.main);
  p.order_unless_left_out(p.third, p.main);
  p.write(p.main, "update");
}

void reduce_after_the_last_gradient(Program& p) {
  p.launch(p.main, "first gradient", true, 0, 128);
  if (p.lacks_edge) Program::order(p.main, p.side);
  p.launch(p.main, "last gradient", true, 128, 128);
  p.order_unless_left_out(p.main, p.side);
  p.write(p.side, "all_reduce");
}

void wait_before_the_launch(Program& p) {
  p.write(p.main, "backward");
  p.order_unless_left_out(p.main, p.side);
  p.read(p.side, "all_reduce");
  Program::order(p.main, p.side);
}

void wait_on_the_stream_that_reads(Program& p) {
  p.write(p.main, "backward");
  Program::order(p.main, p.third);
  p.order_unless_left_out(p.third, p.side);
  p.read(p.side, "all_reduce");
}

void wait_of_the_host(Program& p) {
  p.write(p.main, "update");
  if (!p.lacks_edge) p.main.synchronize();
  p.read(p.side, "save");
}

void poll_by_the_same_thread(Program& p) {
  p.write(p.main, "update");
  Event event;
  event.record(p.main);
  const auto poll = [&] {
    while (!event.query()) std::this_thread::yield();
  };
  if (p.lacks_edge) {
    std::thread(poll).join();
  } else {
    poll();
  }
  p.read(p.side, "save");
}

void use_after_allocation(Program& p) {
  p.main.launch("forward", {}, nullptr);
  p.buffer = static_cast<char*>(allocate(p.main, Program::kBytes));
  p.order_unless_left_out(p.main, p.side);
  p.write(p.side, "gather");
}

void record_before_release(Program& p) {
  p.read(p.side, "send");
  if (!p.lacks_edge) record_stream(p.buffer, p.side);
  release(p.buffer);
}

void order_before_release(Program& p) {
  p.write(p.side, "gather");
  p.order_unless_left_out(p.side, p.main);
  release(p.buffer);
}

struct Case {
  const char* name;
  void (*run)(Program&);
  const char* later;    ///< what the report says of the operation that comes too early ...
  const char* earlier;  ///< ... and of the other
};

void PrintTo(const Case& tested, std::ostream* out) { *out << tested.name; }

const Case kCases[] = {
    {"ReduceAfterBackward", reduce_after_backward, "'all_reduce' (", "writes what 'backward' ("},
    {"UpdateAfterReduction", update_after_reduction, "'update' (", "reads what 'all_reduce' ("},
    {"OverwriteAfterSending", overwrite_after_sending, "'backward' (", "writes what 'send' ("},
    {"OverwriteAfterTwoReaders", overwrite_after_two_readers, "'update' (", "what 'save' ("},
    {"ReduceAfterTheLastGradient", reduce_after_the_last_gradient, "'all_reduce' (",
     "what 'last gradient' ("},
    {"WaitBeforeTheLaunch", wait_before_the_launch, "'all_reduce' (", "reads what 'backward' ("},
    {"WaitOnTheStreamThatReads", wait_on_the_stream_that_reads, "'all_reduce' (",
     "reads what 'backward' ("},
    {"WaitOfTheHost", wait_of_the_host, "'save' (", "reads what 'update' ("},
    {"PollByTheSameThread", poll_by_the_same_thread, "'save' (", "reads what 'update' ("},
    {"UseAfterAllocation", use_after_allocation, "'gather' (", "writes what 'allocation' ("},
    {"RecordBeforeRelease", record_before_release, "memory is released", "while 'send' ("},
    {"OrderBeforeRelease", order_before_release, "memory is released", "while 'gather' ("},
};

class MissingEdge : public ::testing::TestWithParam<std::tuple<Case, Schedule>> {
 protected:
  std::string report(bool lacks_edge) {
    set_schedule(std::get<Schedule>(GetParam()));
    race_detector().set_response(RaceDetector::Response::kReport);
    Program program{lacks_edge};
    std::get<Case>(GetParam()).run(program);
    synchronize_device(0);
    std::string text;
    for (const std::string& each : race_detector().take_reports()) text += each + "\n";
    return text;
  }
};
INSTANTIATE_TEST_SUITE_P(, MissingEdge,
                         ::testing::Combine(::testing::ValuesIn(kCases), kEverySchedule),
                         [](const auto& each) {
                           return std::get<Case>(each.param).name + std::string("_") +
                                  ::testing::PrintToString(std::get<Schedule>(each.param));
                         });

TEST_P(MissingEdge, IsReported) {
  const Case& tested = std::get<Case>(GetParam());
  EXPECT_THAT(report(/*lacks_edge=*/false), IsEmpty());
  EXPECT_THAT(report(/*lacks_edge=*/true),
              AllOf(HasSubstr(tested.later), HasSubstr(tested.earlier), HasSubstr("\nfix: ")));
}

}  // namespace
}  // namespace farandole::sim
