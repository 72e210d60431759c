// SPDX-License-Identifier: Apache-2.0
// NcclCommunicator under the table of the conformance suite, on the simulated NCCL.
#include "support/conformance.h"

#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "nccl/device_ranks.h"
#include "simulated_nccl/device_buffer.h"
#include "support/pattern.h"
#include "support/raised.h"

namespace farandole::test {
namespace {

using comm::DataType;
using comm::ReduceOp;

constexpr size_t kSlotBytes = 8192;

bool nccl_reduces(DataType dtype, ReduceOp op) {
  const bool bits = op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
  if (dtype == DataType::kBool) return op != ReduceOp::kBitXor;
  return dtype != DataType::kInt16 && !bits;
}

/// Runs the operation on a copy of the rank's ordinary memory on its device.
class DeviceMemoryOfCases {
 public:
  explicit DeviceMemoryOfCases(DeviceRank& rank)
      : rank_(rank),
        cases_(rank.group, kSlotBytes),
        device_(rank.stream, cases_.ordinary().size()) {}

  std::string run(const Operation& operation, const Case& instance) {
    return cases_.run(rank_.group, operation, instance, [&](const void* input, void* output) {
      move(/*to_device=*/true);
      const bool is_exchange = std::string(operation.name) == "SendAndReceive";
      if (is_exchange) rank_.group.begin_group();
      operation.call(rank_.group, on_device(input), on_device(output), instance, rank_.options());
      if (is_exchange) rank_.group.end_group();
      move(/*to_device=*/false);
      rank_.stream.synchronize();
    });
  }

 private:
  char* on_device(const void* data) {
    if (data == nullptr) return nullptr;
    const auto* begin = reinterpret_cast<const char*>(cases_.ordinary().data());
    return device_.data() + (static_cast<const char*>(data) - begin);
  }

  void move(bool to_device) {
    char* const host = reinterpret_cast<char*>(cases_.ordinary().data());
    char* const device = sim::bytes_of(device_.data());
    const size_t bytes = cases_.ordinary().size();
    rank_.stream.launch("copy", {{device_.data(), bytes, to_device}}, [=] {
      std::memcpy(to_device ? device : host, to_device ? host : device, bytes);
    });
  }

  DeviceRank& rank_;
  CaseMemory cases_;
  sim::DeviceBuffer device_;
};

using Instance = std::tuple<sim::Schedule, int>;

class NcclConformance : public ::testing::TestWithParam<Instance> {
 protected:
  void TearDown() override {
    for (int device = 0; device < sim::kDeviceCount; ++device) sim::synchronize_device(device);
    EXPECT_THAT(sim::race_detector().take_reports(), ::testing::IsEmpty());
    EXPECT_STREQ(sim::nccl().SimulatedTakeReports(), "");
  }
};

TEST_P(NcclConformance, GivesEveryRankExactlyItsResults) {
  const auto& [schedule, world_size] = GetParam();
  sim::set_schedule(schedule);
  run_device_ranks(world_size, [](DeviceRank& rank) {
    DeviceMemoryOfCases memory(rank);
    for (const Operation& operation : operations()) {
      for (Case instance :
           cases_of(operation, rank.group.world_size(), kSlotBytes, Selection::kPairwise)) {
        instance.memory = Case::Memory::kOrdinary;
        if (operation.reduces && !nccl_reduces(instance.dtype, instance.op)) continue;
        const std::string problem = memory.run(operation, instance);
        if (!problem.empty()) throw std::runtime_error(problem);
      }
    }
  });
}

std::string name_of(const ::testing::TestParamInfo<Instance>& info) {
  const auto& [schedule, world_size] = info.param;
  return ::testing::PrintToString(schedule) + "_Ranks" + std::to_string(world_size);
}

INSTANTIATE_TEST_SUITE_P(, NcclConformance,
                         ::testing::Combine(sim::kEverySchedule, ::testing::Values(1, 2, 3, 4)),
                         name_of);

TEST(NcclReductions, ThatNcclLacksAreRefusedBeforeAnythingIsSent) {
  run_device_ranks(2, [](DeviceRank& rank) {
    sim::DeviceBuffer data(rank.stream, std::vector<char>(64));
    for (const DataType dtype : all_dtypes()) {
      for (const ReduceOp op : all_reduce_ops()) {
        if (!has_reduction(dtype, op) || nccl_reduces(dtype, op)) continue;
        EXPECT_THAT(raised<NotSupported>([&] {
                      rank.group.all_reduce(data.data(), data.data(), 4, dtype, op, rank.options());
                    }),
                    ::testing::HasSubstr("[nccl-reduction]"));
      }
    }
    rank.group.barrier(rank.options());  // in step
    rank.stream.synchronize();
  });
}

}  // namespace
}  // namespace farandole::test
