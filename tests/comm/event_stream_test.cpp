// SPDX-License-Identifier: Apache-2.0
#include "farandole/comm/event_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "farandole/comm/communicator.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

using comm::Span;
using comm::SpanKind;

Span numbered(uint64_t number) {
  Span span;
  span.number = number;
  span.begin_ns = comm::now_ns();
  span.end_ns = comm::now_ns();
  return span;
}

/// Streams in its scope.
struct Streaming {
  Streaming() { comm::start_stream(); }
  ~Streaming() {
    comm::stop_stream();
    comm::drain_stream();
  }
};

TEST(EventStream, KeepsNothingUnlessSomebodyReads) {
  comm::emit(numbered(1));
  const Streaming streaming;
  EXPECT_TRUE(comm::drain_stream().threads.empty());
}

TEST(EventStream, GivesEachThreadsSpansOnceAndInOrder) {
  const Streaming streaming;
  constexpr uint64_t kSpans = 100'000;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([] {
      for (uint64_t number = 1; number <= kSpans; ++number) {
        comm::emit(numbered(number));
        if (number % 1000 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    });
  }
  std::map<int64_t, uint64_t> last;
  uint64_t seen = 0;
  uint64_t lost = 0;
  const auto look = [&] {
    const comm::Drained drained = comm::drain_stream();
    lost += drained.lost;
    for (const auto& thread : drained.threads) {
      for (const Span& span : thread.spans) {
        ASSERT_GT(span.number, last[thread.thread]);
        last[thread.thread] = span.number;
        ++seen;
      }
    }
  };
  while (seen + lost < 3 * kSpans - 3) look();
  for (std::thread& thread : threads) thread.join();
  look();
  EXPECT_EQ(seen + lost, 3 * kSpans) << "lost " << lost;
  EXPECT_EQ(last.size(), 3U) << "the spans of threads that have ended are there";
  look();
  EXPECT_EQ(seen + lost, 3 * kSpans);
}

TEST(EventStream, CountsWhatAFullQueueLoses) {
  const Streaming streaming;
  for (uint64_t i = 0; i < comm::kSpansPerThread + 5; ++i) comm::emit(numbered(i));
  const comm::Drained drained = comm::drain_stream();
  EXPECT_EQ(drained.lost, 5U);
  ASSERT_EQ(drained.threads.size(), 1U);
  EXPECT_EQ(drained.threads[0].spans.size(), comm::kSpansPerThread);
  comm::emit(numbered(7));
  EXPECT_EQ(comm::drain_stream().threads.at(0).spans.at(0).number, 7U);
}

TEST(EventStream, HasCollectivesWithTheTimesOfTheOthers) {
  const Streaming streaming;
  const uint64_t before = comm::now_ns();
  run_thread_ranks(2, [](comm::Communicator& group) {
    float value = 1.0F;
    group.all_reduce(&value, &value, 1, comm::DataType::kFloat32, comm::ReduceOp::kSum);
  });
  const uint64_t after = comm::now_ns();
  constexpr uint64_t kSlack = 1'000'000;  // of the line through two moments on both clocks
  int reductions = 0;
  for (const auto& thread : comm::drain_stream().threads) {
    for (const Span& span : thread.spans) {
      ASSERT_EQ(span.kind, SpanKind::kCollective);
      EXPECT_GE(span.begin_ns + kSlack, before);
      EXPECT_LE(span.begin_ns, span.middle_ns);
      EXPECT_LE(span.middle_ns, span.end_ns);
      EXPECT_LE(span.end_ns, after + kSlack);
      if (span.operation != comm::OpKind::kAllReduce) continue;
      ++reductions;
      EXPECT_EQ(span.bytes, 4U);
      EXPECT_EQ(comm::name_of_group(span.name), "test");
    }
  }
  EXPECT_EQ(reductions, 2);
}

TEST(EventStream, IsOffInAForkedChild) {
  const Streaming streaming;
  comm::emit(numbered(1));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool is_off = !comm::is_streaming();
    comm::emit(numbered(2));
    ::_exit(is_off ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(comm::is_streaming());
}

TEST(EventStream, NumbersNamesAlikeOnAllThreads) {
  const uint32_t forward = comm::name_id("Forward");
  const uint32_t other = comm::name_id(std::string("Other"));
  EXPECT_NE(forward, other);
  EXPECT_EQ(comm::name_id(std::string("For") + "ward"), forward);
  uint32_t elsewhere = 0;
  std::thread([&] { elsewhere = comm::name_id("Forward"); }).join();
  EXPECT_EQ(elsewhere, forward);
  EXPECT_EQ(comm::name_of_id(other), "Other");
  EXPECT_EQ(comm::name_of_id(1u << 30), "?");
}

}  // namespace
}  // namespace farandole::test
