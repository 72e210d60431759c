// SPDX-License-Identifier: Apache-2.0
#include "profile/trace_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "checkpoint/format/json.h"

namespace farandole::profiler {
namespace {

using checkpoint::Json;
using comm::Span;
using comm::SpanKind;

const TraceClock kClock;
const TraceLines kLines(TraceOwner{3, 4, 1, 4711, "algo-2", "node \"b\""}, kClock);

/// The object of a line.
Json parsed(const std::string& line) {
  EXPECT_EQ(line.substr(line.size() - 2), ",\n");
  return Json::parse(line.substr(0, line.size() - 2));
}

const Json& of(const Json& object, const std::string& name) {
  for (const auto& [key, value] : object.object()) {
    if (key == name) return value;
  }
  throw std::runtime_error("no " + name + " in " + object.dump());
}

Span of_kind(SpanKind kind) {
  Span span;
  span.kind = kind;
  span.begin_ns = comm::now_ns();
  span.middle_ns = span.begin_ns + 1'500;
  span.end_ns = span.begin_ns + 4'250;
  return span;
}

std::string range(const std::string& name) {
  Span span = of_kind(SpanKind::kRange);
  span.name = comm::name_id(name);
  return kLines.line(span, 5);
}

TEST(TraceLines, BeginWithWhoseTheyAreAndOnWhichClock) {
  const std::string head = kLines.head(ClockOffset{-12'500, 30'100});
  const size_t end = head.find('\n') + 1;
  const Json first = parsed(head.substr(0, end));
  EXPECT_EQ(of(first, "name").string(), "process_name");
  EXPECT_EQ(of(first, "ph").string(), "M");
  EXPECT_EQ(of(of(first, "args"), "name").string(), "rank 3");
  EXPECT_EQ(of(of(first, "args"), "start_time_since_epoch_in_micros").integer(),
            kClock.start_ns() / 1000);
  const Json second = parsed(head.substr(end));
  const Json& args = of(second, "args");
  EXPECT_EQ(args.dump(),
            "{\"rank\":3,\"world_size\":4,\"local_rank\":1,\"node\":\"algo-2\",\"host\":\"node "
            "\\\"b\\\"\",\"clock_offset_us\":-12.5,\"clock_error_us\":30.1}");
  EXPECT_THAT(kLines.head({}), testing::Not(testing::HasSubstr("clock_offset_us")))
      << "nothing is said of a clock that was not compared";
}

TEST(TraceLines, HaveTimesInMicrosecondsSinceTheStart) {
  Span span = of_kind(SpanKind::kBackward);
  span.number = 7;
  const Json line = parsed(kLines.line(span, 99));
  const double since = static_cast<double>(kClock.at(span.begin_ns) % 1'000'000'000'000) / 1e3 -
                       static_cast<double>(kClock.start_ns() / 1000 % 1'000'000'000);
  EXPECT_NEAR(of(line, "ts").number(), since, 0.01);
  EXPECT_EQ(of(line, "dur").number(), 4.25);
  EXPECT_EQ(of(line, "ph").string(), "X");
  EXPECT_EQ(of(line, "pid").integer(), 4711);
  EXPECT_EQ(of(line, "tid").integer(), 99);
  EXPECT_EQ(of(of(line, "args"), "backward").integer(), 7);
}

TEST(TraceLines, NameEachKindOfSpan) {
  Span collective = of_kind(SpanKind::kCollective);
  collective.operation = comm::OpKind::kAllReduce;
  collective.name = comm::group_id("default");
  collective.number = 42;
  collective.bytes = 4096;
  collective.peer = 2;
  Json line = parsed(kLines.line(collective, 1));
  EXPECT_EQ(of(line, "cat").string(), "collective");
  EXPECT_EQ(of(line, "name").string(), "all_reduce");
  EXPECT_EQ(of(line, "args").dump(),
            "{\"group\":\"default\",\"sequence\":42,\"bytes\":4096,\"waiting_us\":1.5,"
            "\"latest_rank\":2}");

  Span bucket = of_kind(SpanKind::kBucket);
  bucket.number = 3;
  line = parsed(kLines.line(bucket, 1));
  EXPECT_EQ(of(line, "name").string(), "bucket 3");
  EXPECT_EQ(of(of(line, "args"), "complete_us").number(), 1.5);
  bucket.middle_ns = 0;
  EXPECT_THAT(kLines.line(bucket, 1), testing::Not(testing::HasSubstr("complete_us")));

  Span step = of_kind(SpanKind::kStep);
  step.name = comm::name_id("EVAL");
  EXPECT_EQ(of(parsed(kLines.line(step, 1)), "args").dump(), "{\"step\":0,\"mode\":\"EVAL\"}");
  EXPECT_EQ(of(parsed(kLines.line(of_kind(SpanKind::kGarbage), 1)), "cat").string(), "gc");
  EXPECT_EQ(of(parsed(kLines.line(of_kind(SpanKind::kExposed), 1)), "name").string(),
            "exposed_communication");
}

TEST(TraceLines, KnowTheRangesOfTorch) {
  const auto label = [](const std::string& name) {
    const Json line = parsed(range(name));
    return of(line, "cat").string() + "/" + of(line, "name").string();
  };
  EXPECT_EQ(label("DistributedDataParallel.forward"), "forward/forward");
  EXPECT_EQ(label("Optimizer.step#AdamW.step"), "optimizer/optimizer_step");
  EXPECT_EQ(of(of(parsed(range("Optimizer.step#AdamW.step")), "args"), "optimizer").string(),
            "AdamW");
  EXPECT_EQ(label("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"),
            "data/dataloader");
  Span wait = of_kind(SpanKind::kRange);
  wait.name = comm::name_id("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__");
  EXPECT_EQ(of(parsed(kLines.line(wait, 1)), "args").dump(), "{}");
  wait.number = 1;
  EXPECT_EQ(of(parsed(kLines.line(wait, 1)), "args").dump(), "{\"num_workers\":0}");
  EXPECT_EQ(label("farandole:save_checkpoint"), "checkpoint/save");
  EXPECT_EQ(label("my \"phase\"\n"), "annotation/my \"phase\"\n");
}

}  // namespace
}  // namespace farandole::profiler
