// SPDX-License-Identifier: Apache-2.0
// The conformance suite: what every communicator must do, one table for all of them. Operations,
// rank counts and ways of running ranks make the tests; each runs the other parameters in pairs, or
// all of them with FARANDOLE_TEST_ALL. A new backend adds its
// places to kPlaces.
#include "farandole/comm/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ostream>
#include <set>
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

/// A backend, and on which host each rank is.
struct Place {
  std::string backend;
  std::vector<int> hosts;

  int world_size() const { return static_cast<int>(hosts.size()); }
  std::string name() const {
    std::string text = backend + "_Hosts";
    for (const int host : hosts) text += std::to_string(host);
    return text;
  }
};

void PrintTo(const Place& place, std::ostream* out) { *out << place.name(); }

/// All backends of this build that work on host memory, except mpi: tests/mpi has its ranks.
const std::vector<Place> kPlaces{
    {"shm", {0}},          {"shm", {0, 0}},       {"shm", {0, 0, 0}},
    {"shm", {0, 0, 0, 0}}, {"tcp", {0, 1}},       {"tcp", {0, 1, 0, 1}},
    {"tcp", {0, 1, 1, 1}}, {"tcp", {0, 1, 2, 3}}, {"tcp", {0, 1, 2, 1, 2, 2}},
};

/// Those whose ranks run as processes, too, which takes longer.
const std::vector<Place> kPlacesOfProcesses{
    {"shm", {0}}, {"shm", {0, 0}}, {"shm", {0, 0, 0, 0}}, {"tcp", {0, 1, 2, 1, 2, 2}}};

TEST(CommunicatorBackends, AreAllHeldToTheSuite) {
  std::set<std::string> built;
  for (const comm::BackendInfo& each : comm::backends()) {
    if (each.built && each.memory_kind == comm::MemoryKind::kHost && each.name != "mpi")
      built.insert(each.name);
  }
  std::set<std::string> held;
  for (const Place& each : kPlaces) held.insert(each.backend);
  EXPECT_EQ(built, held);
}

/// Staging of two pages, so that small counts take many chunks. Thread ranks in three places also
/// run with the default size, which is 256 times as large. FARANDOLE_TEST_ALL runs both sizes
/// everywhere; FARANDOLE_TEST_THIN runs only the small size.
std::vector<Config> slots_for(const Place& place, const Runner& runner) {
  Config small;
  small.staging_bytes = 8192;
  const std::string name = place.name();
  const bool has_long = runner.run == kThreads.run &&
                        (name == "shm_Hosts0" || name == "shm_Hosts000" || name == "tcp_Hosts0101");
  const bool both = whole_matrix() || (has_long && !thin_matrix());
  return both ? std::vector<Config>{small, Config()} : std::vector<Config>{small};
}

using Instance = std::tuple<Place, Runner, Operation>;

class CommunicatorConformance : public ::testing::TestWithParam<Instance> {};

TEST_P(CommunicatorConformance, GivesEveryRankExactlyItsResult) {
  const auto& [place, runner, operation] = GetParam();
  const int world_size = place.world_size();
  const bool all = whole_matrix() && runner.run == kThreads.run;
  for (const Config& config : slots_for(place, runner)) {
    const std::vector<Case> cases = cases_of(operation, world_size, config.staging_bytes,
                                             all ? Selection::kAll : Selection::kPairwise);
    const auto body = [&, &asked = operation](Communicator& group) {
      CaseMemory memory(group, config.staging_bytes);
      for (const Case& instance : cases) {
        const std::string problem = memory.run(group, asked, instance);
        if (!problem.empty()) throw std::runtime_error(problem);
      }
    };
    runner.run(world_size, body, {config, {}, place.backend, place.hosts});
  }
}

std::string name_of_instance(const ::testing::TestParamInfo<Instance>& info) {
  const auto& [place, runner, operation] = info.param;
  return place.name() + "_" + operation.name;
}

INSTANTIATE_TEST_SUITE_P(Threads, CommunicatorConformance,
                         ::testing::Combine(::testing::ValuesIn(kPlaces),
                                            ::testing::Values(kThreads),
                                            ::testing::ValuesIn(operations())),
                         name_of_instance);
INSTANTIATE_TEST_SUITE_P(Processes, CommunicatorConformance,
                         ::testing::Combine(::testing::ValuesIn(kPlacesOfProcesses),
                                            ::testing::Values(kProcesses),
                                            ::testing::ValuesIn(operations())),
                         name_of_instance);

using OrderInstance = std::tuple<Place, Runner>;

class CommunicatorOrder : public ::testing::TestWithParam<OrderInstance> {};

TEST_P(CommunicatorOrder, HoldsThroughManySmallAndLargeCollectives) {
  const auto& [place, runner] = GetParam();
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
  for (const Config& config : slots_for(place, runner))
    runner.run(place.world_size(), body, {config, {}, place.backend, place.hosts});
}

std::string name_of_order(const ::testing::TestParamInfo<OrderInstance>& info) {
  const auto& [place, runner] = info.param;
  return place.name();
}

INSTANTIATE_TEST_SUITE_P(Threads, CommunicatorOrder,
                         ::testing::Combine(::testing::ValuesIn(kPlaces),
                                            ::testing::Values(kThreads)),
                         name_of_order);
INSTANTIATE_TEST_SUITE_P(Processes, CommunicatorOrder,
                         ::testing::Combine(::testing::ValuesIn(kPlacesOfProcesses),
                                            ::testing::Values(kProcesses)),
                         name_of_order);

}  // namespace
}  // namespace farandole::test
