// SPDX-License-Identifier: Apache-2.0
// A wait that is missing beside a collective is found by the race detector under every schedule,
// and nothing is found once it is there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <tuple>

#include "simulated_nccl/nccl_ranks.h"
#include "support/simulated_device/device.h"
#include "support/simulated_device/memory.h"

namespace farandole::sim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A rank that computes on one stream and communicates on another.
struct Program {
  static constexpr size_t kCount = 4;
  static constexpr size_t kBytes = 2 * kCount * sizeof(float);

  void compute(const char* kernel, bool writes) {
    compute_stream.launch(kernel, {{data, kBytes, writes}}, nullptr);
  }
  ncclResult_t all_reduce() {
    return nccl().AllReduce(data, data, kCount, ncclFloat32, ncclSum, comm,
                            reinterpret_cast<cudaStream_t>(&nccl_stream));
  }
  void let_nccl_wait() {
    if (lacks_wait) return;
    Event event;
    event.record(compute_stream);
    nccl_stream.wait(event);
  }
  void let_compute_wait() {
    Event event;
    event.record(nccl_stream);
    compute_stream.wait(event);
  }

  const bool lacks_wait;
  const ncclComm_t comm;
  Stream& compute_stream = stream(0, 0);
  Stream& nccl_stream = new_stream(0);
  char* data = static_cast<char*>(allocate(compute_stream, kBytes));
};

void reduce_after_backward(Program& p) {
  p.compute("backward", true);
  p.let_nccl_wait();
  p.all_reduce();
}

void update_after_reduction(Program& p) {
  p.all_reduce();
  if (!p.lacks_wait) p.let_compute_wait();
  p.compute("update", false);
}

void send_after_forward(Program& p) {
  p.compute("forward", true);
  p.let_nccl_wait();
  nccl().GroupStart();
  const auto on = reinterpret_cast<cudaStream_t>(&p.nccl_stream);
  nccl().Send(p.data, 1, ncclFloat32, 0, p.comm, on);
  nccl().Recv(p.data + 4, 1, ncclFloat32, 0, p.comm, on);
  nccl().GroupEnd();
}

void gather_after_optimizer(Program& p) {
  p.compute("optimizer", true);
  p.let_nccl_wait();
  nccl().AllGather(p.data, p.data, Program::kCount, ncclFloat32, p.comm,
                   reinterpret_cast<cudaStream_t>(&p.nccl_stream));
}

void overwrite_after_reduction(Program& p) {
  char* sum = static_cast<char*>(allocate(p.nccl_stream, Program::kBytes));
  nccl().AllReduce(p.data, sum, Program::kCount, ncclFloat32, ncclSum, p.comm,
                   reinterpret_cast<cudaStream_t>(&p.nccl_stream));
  if (!p.lacks_wait) p.let_compute_wait();
  p.compute("backward", true);
}

/// The launch is only there when the call is no longer in progress.
void record_after_launch(Program& p) {
  EXPECT_EQ(p.all_reduce(), ncclInProgress);
  if (p.lacks_wait) p.let_compute_wait();
  EXPECT_EQ(NcclRank::settle(p.comm), ncclSuccess);
  if (!p.lacks_wait) p.let_compute_wait();
  p.compute("update", false);
}

struct Case {
  const char* name;
  bool blocking;
  void (*run)(Program&);
  const char* later;    ///< what the report says of the operation that comes too early ...
  const char* earlier;  ///< ... and of the other
};

void PrintTo(const Case& tested, std::ostream* out) { *out << tested.name; }

const Case kCases[] = {
    {"ReduceAfterBackward", true, reduce_after_backward, "'ncclAllReduce' (", "'backward' ("},
    {"UpdateAfterReduction", true, update_after_reduction, "'update' (", "'ncclAllReduce' ("},
    {"OverwriteAfterReduction", true, overwrite_after_reduction, "'backward' (",
     "writes what 'ncclAllReduce' ("},
    {"SendAfterForward", true, send_after_forward, "'ncclGroup' (", "'forward' ("},
    {"GatherAfterOptimizer", true, gather_after_optimizer, "'ncclAllGather' (", "'optimizer' ("},
    {"RecordAfterLaunch", false, record_after_launch, "'update' (", "'ncclAllReduce' ("},
};

class MissingWait : public ::testing::TestWithParam<std::tuple<Case, Schedule>> {
 protected:
  std::string report(bool lacks_wait) {
    set_schedule(std::get<Schedule>(GetParam()));
    race_detector().set_response(RaceDetector::Response::kReport);
    const NcclRank rank{0, 1, new_unique_id(), stream(0, 0)};
    Program program{lacks_wait, rank.join(std::get<Case>(GetParam()).blocking)};
    std::get<Case>(GetParam()).run(program);
    synchronize_device(0);
    EXPECT_EQ(nccl().CommDestroy(program.comm), ncclSuccess);
    EXPECT_STREQ(nccl().SimulatedTakeReports(), "");
    std::string text;
    for (const std::string& each : race_detector().take_reports()) text += each + "\n";
    return text;
  }
};
INSTANTIATE_TEST_SUITE_P(, MissingWait,
                         ::testing::Combine(::testing::ValuesIn(kCases), kEverySchedule),
                         [](const auto& each) {
                           return std::get<Case>(each.param).name + std::string("_") +
                                  ::testing::PrintToString(std::get<Schedule>(each.param));
                         });

TEST_P(MissingWait, IsReported) {
  const Case& tested = std::get<Case>(GetParam());
  EXPECT_THAT(report(/*lacks_wait=*/false), IsEmpty());
  EXPECT_THAT(report(/*lacks_wait=*/true),
              AllOf(HasSubstr(tested.later), HasSubstr(tested.earlier), HasSubstr("\nfix: ")));
}

/// Unlike a GPU, which may do so for a long time unnoticed.
TEST(AMissingWait, IsThrownAtTheCall) {
  const NcclRank rank{0, 1, new_unique_id(), new_stream(0)};
  Program program{true, rank.join()};
  program.compute("backward", true);
  EXPECT_EQ(program.all_reduce(), ncclUnhandledCudaError);
  EXPECT_THAT(nccl().GetLastError(nullptr), HasSubstr("'backward' ("));
  EXPECT_EQ(nccl().CommAbort(program.comm), ncclSuccess);
  race_detector().take_reports();
}

}  // namespace
}  // namespace farandole::sim
