// SPDX-License-Identifier: Apache-2.0
// Random programs of kernels, waits and releases. With all edges that they need, results are those
// of the kernels one after the other, and nothing is reported. Without one of the edges, the
// detector reports exactly the programs in which a search through the graph finds a race.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "support/simulated_device/device.h"
#include "support/simulated_device/memory.h"
#include "support/simulated_device/no_races.h"
#include "support/simulated_device/race_detector.h"

namespace farandole::sim {
namespace {

using ::testing::IsEmpty;

constexpr size_t kStreams = 4;
constexpr size_t kBuffers = 5;
constexpr size_t kWords = 8;  ///< of each buffer
constexpr size_t kSteps = 60;

/// Words [begin, end) of a buffer.
struct Range {
  size_t buffer;
  size_t begin;
  size_t end;
  bool writes;
};

struct Edge {
  size_t earlier;  ///< a step
  bool by_host;    ///< the host waits, not the stream
};

/// A kernel, and what is waited for before it is launched.
struct Step {
  size_t stream;
  std::vector<Range> ranges;
  std::vector<Edge> edges;
};

using Program = std::vector<Step>;
using Steps = std::bitset<kSteps>;

bool conflict(const Step& a, const Step& b) {
  for (const Range& x : a.ranges) {
    for (const Range& y : b.ranges) {
      const bool overlap = x.buffer == y.buffer && x.begin < y.end && y.begin < x.end;
      if (overlap && (x.writes || y.writes)) return true;
    }
  }
  return false;
}

/// Those of the steps before `index` that happen before it.
Steps steps_before(const Program& program, size_t index) {
  Steps found;
  for (size_t later = index + 1; later-- > 0;) {
    if (later != index && !found[later]) continue;
    for (size_t i = 0; i < later; ++i) {
      if (program[i].stream == program[later].stream) found[i] = true;
    }
    for (const Edge& edge : program[later].edges) found[edge.earlier] = true;
    for (size_t i = 0; i < later; ++i) {  // the host launches all that follows later
      for (const Edge& edge : program[i].edges) {
        if (edge.by_host) found[edge.earlier] = true;
      }
    }
  }
  return found;
}

bool has_race(const Program& program) {
  for (size_t later = 0; later < program.size(); ++later) {
    const Steps before = steps_before(program, later);
    for (size_t i = 0; i < later; ++i) {
      if (!before[i] && conflict(program[i], program[later])) return true;
    }
  }
  return false;
}

class Generator {
 public:
  explicit Generator(unsigned seed) : random_(seed) {}

  size_t below(size_t limit) { return random_() % limit; }

  /// A program with no race. Its edges come in random order, and some are implied by others.
  Program make_program() {
    Program program;
    while (program.size() < kSteps) {
      Step step{below(kStreams), {range(true)}, {}};
      for (size_t reads = below(3); reads > 0; --reads) step.ranges.push_back(range(false));
      program.push_back(step);
      add_edges(program);
    }
    return program;
  }

  /// Removes a random edge.
  void break_program(Program& program) {
    for (;;) {
      std::vector<Edge>& edges = program[below(program.size())].edges;
      if (edges.empty()) continue;
      edges.erase(edges.begin() + static_cast<std::ptrdiff_t>(below(edges.size())));
      return;
    }
  }

 private:
  Range range(bool writes) {
    const size_t begin = below(kWords);
    return {below(kBuffers), begin, begin + 1 + below(kWords - begin), writes};
  }

  void add_edges(Program& program) {
    Step& last = program.back();
    std::vector<size_t> earlier(program.size() - 1);
    for (size_t i = 0; i < earlier.size(); ++i) earlier[i] = i;
    std::shuffle(earlier.begin(), earlier.end(), random_);
    for (const size_t each : earlier) {
      const Steps before = steps_before(program, program.size() - 1);
      if (!before[each] && conflict(program[each], last)) {
        last.edges.push_back({each, below(20) == 0});
      }
    }
  }

  std::minstd_rand random_;
};

/// Launches the program in a detector of its own.
std::vector<std::string> reports_of(const Program& program) {
  RaceDetector detector;
  detector.set_response(RaceDetector::Response::kReport);
  for (size_t i = 0; i < kStreams; ++i) detector.add_stream("stream " + std::to_string(i));
  const auto address = [](size_t buffer, size_t word) {
    return reinterpret_cast<const void*>(4096 * (buffer + 1) + sizeof(uint64_t) * word);
  };
  for (size_t i = 0; i < kBuffers; ++i) {
    detector.allocate(address(i, 0), kWords * sizeof(uint64_t), 0);
  }
  std::vector<VectorClock> events;
  for (const Step& step : program) {
    for (const Edge& edge : step.edges) {
      if (edge.by_host) {
        detector.order_host(events[edge.earlier]);
      } else {
        detector.order(step.stream, events[edge.earlier]);
      }
    }
    std::vector<Access> accesses;
    for (const Range& range : step.ranges) {
      accesses.push_back({address(range.buffer, range.begin),
                          (range.end - range.begin) * sizeof(uint64_t), range.writes});
    }
    detector.launch(step.stream, "step " + std::to_string(events.size()), accesses);
    events.push_back(detector.now(step.stream));
  }
  return detector.take_reports();
}

TEST(RandomProgram, IsReportedIfAndOnlyIfItHasARace) {
  size_t races = 0;
  const unsigned programs = 300;
  for (unsigned seed = 1; seed <= programs; ++seed) {
    SCOPED_TRACE(seed);
    Generator generator(seed);
    Program program = generator.make_program();
    ASSERT_THAT(reports_of(program), IsEmpty());
    generator.break_program(program);
    const bool is_broken = has_race(program);
    ASSERT_EQ(!reports_of(program).empty(), is_broken);
    races += is_broken ? 1 : 0;
  }
  EXPECT_GT(races, programs / 2);  // many of the edges are needed
}

/// What a kernel does with the buffers at `buffers`.
void compute(const Step& step, const std::vector<uint64_t*>& buffers) {
  uint64_t sum = 1;
  for (const Range& range : step.ranges) {
    for (size_t i = range.begin; i < range.end && !range.writes; ++i) {
      sum = 31 * sum + buffers[range.buffer][i];
    }
  }
  for (const Range& range : step.ranges) {
    for (size_t i = range.begin; i < range.end && range.writes; ++i) {
      buffers[range.buffer][i] = 31 * buffers[range.buffer][i] + sum + i;
    }
  }
}

std::vector<uint64_t> run_in_order(const Program& program) {
  std::vector<uint64_t> words(kBuffers * kWords, 0);
  std::vector<uint64_t*> buffers;
  for (size_t i = 0; i < kBuffers; ++i) buffers.push_back(words.data() + kWords * i);
  for (const Step& step : program) compute(step, buffers);
  return words;
}

class RandomPrograms : public NoRaces {
 protected:
  RandomPrograms() {
    while (streams_.size() < kStreams) streams_.push_back(&new_stream(0));
  }

  std::vector<uint64_t> run_on_streams(const Program& program);

  std::vector<Stream*> streams_{&stream(0, 0)};
};
INSTANTIATE_TEST_SUITE_P(, RandomPrograms, kEverySchedule, ::testing::PrintToStringParamName());

std::vector<uint64_t> RandomPrograms::run_on_streams(const Program& program) {
  constexpr size_t kBytes = kWords * sizeof(uint64_t);
  std::vector<uint64_t*> addresses;
  std::vector<uint64_t*> buffers;
  for (size_t i = 0; i < kBuffers; ++i) {
    addresses.push_back(static_cast<uint64_t*>(allocate(*streams_[0], kBytes)));
    buffers.push_back(bytes_of(addresses.back()));
    streams_[0]->launch("zero", {{addresses.back(), kBytes, true}},
                        [to = buffers.back()] { std::fill_n(to, kWords, 0); });
  }
  streams_[0]->synchronize();
  std::vector<Event> events;
  for (const Step& step : program) {
    Stream& on = *streams_[step.stream];
    for (const Edge& edge : step.edges) {
      edge.by_host ? events[edge.earlier].synchronize() : on.wait(events[edge.earlier]);
    }
    std::vector<Access> accesses;
    for (const Range& range : step.ranges) {
      accesses.push_back({addresses[range.buffer] + range.begin,
                          (range.end - range.begin) * sizeof(uint64_t), range.writes});
    }
    on.launch("step " + std::to_string(events.size()), accesses,
              [step, buffers] { compute(step, buffers); });
    events.emplace_back().record(on);
  }
  synchronize_device(0);
  std::vector<uint64_t> words;
  for (size_t i = 0; i < kBuffers; ++i) {
    words.insert(words.end(), buffers[i], buffers[i] + kWords);
    release(addresses[i]);
  }
  return words;
}

TEST_P(RandomPrograms, GiveTheResultsOfTheirStepsInOrder) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    const Program program = Generator(seed).make_program();
    ASSERT_EQ(run_on_streams(program), run_in_order(program));
  }
}

}  // namespace
}  // namespace farandole::sim
