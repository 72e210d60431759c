// SPDX-License-Identifier: Apache-2.0
// The conformance suite: what every communicator must do, one table for all of them. Operations,
// rank counts and ways of running ranks make the tests; each runs the other parameters in pairs, or
// all of them with FARANDOLE_TEST_ALL. A new backend adds its name to kBackends.
#include "farandole/comm/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ostream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "farandole/comm/backends.h"
#include "support/conformance.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

using comm::Communicator;
using comm::DataType;
using comm::ReduceOp;

/// Runs a body on ranks: as threads or as processes.
struct Runner {
  const char* name;
  void (*run)(int, const RankBody&, const RankOptions&);
};

void PrintTo(const Runner& runner, std::ostream* out) { *out << runner.name; }

constexpr Runner kThreads{"Threads", run_thread_ranks};
constexpr Runner kProcesses{"Processes", run_process_ranks};

/// All backends of this build that work on host memory.
const std::vector<std::string> kBackends{"shm"};

TEST(CommunicatorBackends, AreAllHeldToTheSuite) {
  std::vector<std::string> built;
  for (const comm::BackendInfo& each : comm::backends()) {
    if (each.built && each.memory_kind == comm::MemoryKind::kHost) built.push_back(each.name);
  }
  EXPECT_THAT(built, ::testing::ElementsAreArray(kBackends));
}

/// Slots of two pages, so that modest counts take many chunks, and the default.
std::vector<Config> slots() {
  Config small;
  small.staging_bytes = 8192;
  return thin_matrix() ? std::vector<Config>{small} : std::vector<Config>{small, Config()};
}

using Instance = std::tuple<std::string, Runner, Operation, int>;

class CommunicatorConformance : public ::testing::TestWithParam<Instance> {};

TEST_P(CommunicatorConformance, GivesEveryRankExactlyItsResult) {
  const auto& [backend, runner, operation, world_size] = GetParam();
  const bool all = whole_matrix() && runner.run == kThreads.run;
  for (const Config& config : slots()) {
    const std::vector<Case> cases = cases_of(operation, world_size, config.staging_bytes,
                                             all ? Selection::kAll : Selection::kPairwise);
    const auto body = [&, &asked = operation](Communicator& group) {
      CaseMemory memory(group, config.staging_bytes);
      for (const Case& instance : cases) {
        const std::string problem = memory.run(group, asked, instance);
        if (!problem.empty()) throw std::runtime_error(problem);
      }
    };
    runner.run(world_size, body, {config, {}, backend});
  }
}

std::string name_of_instance(const ::testing::TestParamInfo<Instance>& info) {
  const auto& [backend, runner, operation, world_size] = info.param;
  return backend + "_" + operation.name + runner.name + std::to_string(world_size) + "Ranks";
}

INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorConformance,
                         ::testing::Combine(::testing::ValuesIn(kBackends),
                                            ::testing::Values(kThreads, kProcesses),
                                            ::testing::ValuesIn(operations()),
                                            ::testing::Values(1, 2, 3, 4)),
                         name_of_instance);

using OrderInstance = std::tuple<std::string, Runner, int>;

class CommunicatorOrder : public ::testing::TestWithParam<OrderInstance> {};

TEST_P(CommunicatorOrder, HoldsThroughManySmallAndLargeCollectives) {
  const auto& [backend, runner, world_size] = GetParam();
  const RankBody body = [](Communicator& group) {
    const int rounds = thin_matrix() ? 60 : 400;
    for (int round = 0; round < rounds; ++round) {
      const size_t count = static_cast<size_t>(1 + (round * 7919) % 9000);
      std::vector<float> data(count, static_cast<float>(round + group.rank()));
      group.all_reduce(data.data(), data.data(), count, DataType::kFloat32, ReduceOp::kMax);
      const auto expected = static_cast<float>(round + group.world_size() - 1);
      ASSERT_EQ(data.front(), expected);
      ASSERT_EQ(data.back(), expected);
      if (round % 3 == 0) group.barrier();
      int64_t word = group.rank() == round % group.world_size() ? round : -1;
      group.broadcast(&word, 1, DataType::kInt64, round % group.world_size());
      ASSERT_EQ(word, round);
    }
  };
  for (const Config& config : slots()) runner.run(world_size, body, {config, {}, backend});
}

std::string name_of_order(const ::testing::TestParamInfo<OrderInstance>& info) {
  const auto& [backend, runner, world_size] = info.param;
  return backend + "_" + runner.name + std::to_string(world_size) + "Ranks";
}

INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorOrder,
                         ::testing::Combine(::testing::ValuesIn(kBackends),
                                            ::testing::Values(kThreads, kProcesses),
                                            ::testing::Values(1, 2, 3, 4)),
                         name_of_order);

}  // namespace
}  // namespace farandole::test
