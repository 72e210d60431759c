// SPDX-License-Identifier: Apache-2.0
// Each call that NCCL forbids is reported, with the ranks that it concerns; waits that programs
// forget are found by the race detector.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "simulated_nccl/device_buffer.h"
#include "simulated_nccl/nccl_ranks.h"
#include "simulated_nccl/values.h"
#include "support/simulated_device/capture.h"
#include "support/simulated_device/errors.h"

namespace farandole::sim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A communicator, mostly of two ranks, and a buffer on each.
struct Pair {
  explicit Pair(const NcclRank& rank, bool blocking = true)
      : me(rank), comm(rank.join(blocking)), data(rank.stream, std::vector<char>(64)) {}

  char* at(size_t element) const { return data.data() + 4 * element; }
  ncclResult_t all_reduce(size_t count, ncclDataType_t dtype = ncclFloat32,
                          ncclRedOp_t op = ncclSum) const {
    return nccl().AllReduce(at(0), at(0), count, dtype, op, comm, me.handle());
  }
  ncclResult_t send(int peer, size_t count = 1) const {
    return nccl().Send(at(0), count, ncclFloat32, peer, comm, me.handle());
  }
  ncclResult_t receive(int peer, size_t count = 1) const {
    return nccl().Recv(at(8), count, ncclFloat32, peer, comm, me.handle());
  }
  void destroy() const { EXPECT_EQ(nccl().CommDestroy(comm), ncclSuccess); }

  const NcclRank& me;
  const ncclComm_t comm;
  const DeviceBuffer data;
};

struct Case {
  const char* name;
  bool blocking;
  std::function<void(Pair&)> run;
  std::vector<const char*> report;  ///< parts of it
};

void PrintTo(const Case& tested, std::ostream* out) { *out << tested.name; }

bool first(const Pair& pair) { return pair.me.rank == 0; }

std::vector<Case> disagreements() {
  return {
      {"Counts",
       true,
       [](Pair& p) { p.all_reduce(first(p) ? 3 : 4); },
       {"rank 0", "rank 1", "ncclAllReduce of 3 float32", "ncclAllReduce of 4 float32"}},
      {"Types",
       true,
       [](Pair& p) { p.all_reduce(1, first(p) ? ncclFloat32 : ncclInt32); },
       {"rank 0", "rank 1", "1 float32", "1 int32"}},
      {"Operators",
       true,
       [](Pair& p) { p.all_reduce(1, ncclInt8, first(p) ? ncclMax : ncclMin); },
       {"rank 0", "rank 1", "with ncclMax", "with ncclMin"}},
      {"Roots",
       true,
       [](Pair& p) {
         nccl().Broadcast(p.at(0), p.at(0), 1, ncclInt8, p.me.rank, p.comm, p.me.handle());
       },
       {"rank 0", "rank 1", "root 0", "root 1"}},
      {"Order",
       true,
       [](Pair& p) {
         const auto gather = [&] {
           nccl().AllGather(p.at(4), p.at(8), 1, ncclFloat32, p.comm, p.me.handle());
         };
         if (first(p)) gather();
         p.all_reduce(1);
         if (!first(p)) gather();
       },
       {"rank 0", "rank 1", "ncclAllGather", "ncclAllReduce", "same order"}},
      {"Sizes",
       true,
       [](Pair& p) { first(p) ? p.send(1, 2) : p.receive(0, 3); },
       {"rank 0", "rank 1", "ncclSend of 2", "ncclRecv of 3"}},
      {"SendForACollective",
       true,
       [](Pair& p) { first(p) ? p.send(1) : p.all_reduce(1); },
       {"rank 0", "rank 1", "ncclSend", "ncclAllReduce"}},
      {"SendsBeforeReceives",
       true,
       [](Pair& p) {
         p.send(1 - p.me.rank);
         p.receive(1 - p.me.rank);
       },
       {"rank 0", "rank 1", "wait for each other", "ncclSend", "one group"}},
      {"ReceivesBeforeSends",
       true,
       [](Pair& p) {
         p.receive(1 - p.me.rank);
         p.send(1 - p.me.rank);
       },
       {"rank 0", "rank 1", "wait for each other", "ncclRecv"}},
      {"SendToItself",
       true,
       [](Pair& p) { p.send(p.me.rank); },
       {"of 2 wait for each other", "ncclSend"}},
      {"NoReceive",
       true,
       [](Pair& p) {
         if (first(p)) p.send(1);
         nccl().CommFinalize(p.comm);
       },
       {"rank 0 waits for rank 1", "ncclSend", "has finalized"}},
      {"NoSend",
       true,
       [](Pair& p) {
         if (first(p)) p.receive(1);
         nccl().CommFinalize(p.comm);
       },
       {"rank 0 waits for rank 1", "ncclRecv", "has finalized"}},
      {"NoSplit",
       true,
       [](Pair& p) {
         ncclComm_t part = nullptr;
         if (first(p))
           nccl().CommSplit(p.comm, 0, 0, &part, nullptr);
         else
           nccl().CommFinalize(p.comm);
       },
       {"rank 0 of 2 waits for rank 1", "has finalized"}},
      {"Windows",
       true,
       [](Pair& p) {
         ncclWindow_t window = nullptr;
         nccl().CommWindowRegister(p.comm, p.at(0), first(p) ? 32 : 64, &window, 0);
       },
       {"windows that differ", "32", "64"}},
  };
}

std::vector<Case> wrong_calls() {
  return {
      {"AfterAbort",
       true,
       [](Pair& p) {
         nccl().CommAbort(p.comm);
         EXPECT_EQ(p.all_reduce(1), ncclInvalidArgument);
       },
       {"rank 1 of 2 calls ncclAllReduce", "is gone", "ncclCommAbort"}},
      {"AfterDestroy",
       true,
       [](Pair& p) {
         p.destroy();
         EXPECT_EQ(nccl().CommAbort(p.comm), ncclInvalidArgument);
       },
       {"calls ncclCommAbort", "is gone", "ncclCommDestroy"}},
      {"AfterFinalize",
       true,
       [](Pair& p) {
         nccl().CommFinalize(p.comm);
         EXPECT_EQ(p.all_reduce(1), ncclInvalidUsage);
         p.destroy();
       },
       {"is gone", "ncclCommFinalize"}},
      {"AfterShrink",
       true,
       [](Pair& p) {
         int excluded = 1 - p.me.rank;
         ncclComm_t rest = nullptr;
         nccl().CommShrink(p.comm, &excluded, 1, &rest, nullptr, NCCL_SHRINK_ABORT);
         EXPECT_EQ(p.all_reduce(1), ncclInvalidUsage);
         EXPECT_EQ(nccl().CommDestroy(rest), ncclSuccess);
       },
       {"was shrunk"}},
      {"NoCommunicator",
       true,
       [](Pair& p) {
         EXPECT_EQ(nccl().AllReduce(p.at(0), p.at(0), 1, ncclInt8, ncclSum, nullptr, nullptr),
                   ncclInvalidArgument);
       },
       {"does not exist"}},
      {"BeforeTheLastCallIsDone",
       false,
       [](Pair& p) {
         EXPECT_EQ(p.all_reduce(1), ncclInProgress);
         EXPECT_EQ(p.all_reduce(1), ncclInvalidUsage);
       },
       {"too early", "ncclCommGetAsyncError"}},
      {"DestroyBeforeTheLastCallIsDone",
       false,
       [](Pair& p) {
         EXPECT_EQ(nccl().CommFinalize(p.comm), ncclInProgress);
         EXPECT_EQ(nccl().CommDestroy(p.comm), ncclInvalidUsage);
       },
       {"has a call in progress"}},
      {"DestroyBeforeItsGraph",
       true,
       [](Pair& p) {
         p.me.stream.begin_capture(CaptureMode::kThreadLocal);
         EXPECT_EQ(p.all_reduce(1), ncclSuccess);
         const auto graph = p.me.stream.end_capture();
         EXPECT_EQ(nccl().CommDestroy(p.comm), ncclInvalidUsage);
       },
       {"destroys a communicator that a graph holds"}},
      {"EndOfNoGroup",
       true,
       [](Pair&) { EXPECT_EQ(nccl().GroupEnd(), ncclInvalidUsage); },
       {"ncclGroupEnd ends no group"}},
      {"SplitInAGroup",
       true,
       [](Pair& p) {
         ncclComm_t part = nullptr;
         nccl().GroupStart();
         EXPECT_EQ(nccl().CommSplit(p.comm, 0, 0, &part, nullptr), ncclInvalidUsage);
         nccl().GroupEnd();
       },
       {"ncclCommSplit is called in a group"}},
      {"SameMemoryInAGroup",
       true,
       [](Pair& p) {
         nccl().GroupStart();
         p.all_reduce(1);
         p.all_reduce(1);
         EXPECT_EQ(nccl().GroupEnd(), ncclInvalidUsage);
       },
       {"rank 0", "touch the same memory"}},
      {"OverlappingBuffers",
       true,
       [](Pair& p) {
         EXPECT_EQ(nccl().AllReduce(p.at(0), p.at(1), 2, ncclInt32, ncclSum, p.comm, p.me.handle()),
                   ncclInvalidArgument);
       },
       {"overlapping buffers", "in place"}},
      {"NoSuchRoot",
       true,
       [](Pair& p) {
         EXPECT_EQ(nccl().Broadcast(p.at(0), p.at(0), 1, ncclInt8, 2, p.comm, p.me.handle()),
                   ncclInvalidArgument);
       },
       {"no such rank"}},
      {"NoSuchPeer",
       true,
       [](Pair& p) { EXPECT_EQ(p.send(-1), ncclInvalidArgument); },
       {"no such rank"}},
      {"NoSuchType",
       true,
       [](Pair& p) { EXPECT_EQ(p.all_reduce(1, ncclFloat8e4m3), ncclInvalidArgument); },
       {"data type"}},
      {"NoSuchOperator",
       true,
       [](Pair& p) {
         EXPECT_EQ(p.all_reduce(1, ncclInt8, static_cast<ncclRedOp_t>(9)), ncclInvalidArgument);
       },
       {"reduction operator 9"}},
      {"OperatorOfAnotherType",
       true,
       [](Pair& p) {
         float factor = 1;
         ncclRedOp_t op;
         nccl().RedOpCreatePreMulSum(&op, &factor, ncclFloat32, ncclScalarHostImmediate, p.comm);
         EXPECT_EQ(p.all_reduce(1, ncclInt8, op), ncclInvalidArgument);
       },
       {"for that type"}},
      {"MemoryOfTheHost",
       true,
       [](Pair& p) {
         float data = 0;
         EXPECT_EQ(nccl().AllReduce(&data, &data, 1, ncclFloat32, ncclSum, p.comm, p.me.handle()),
                   ncclInvalidArgument);
       },
       {"not memory of the communicator's device"}},
      {"StreamOfAnotherDevice",
       true,
       [](Pair& p) {
         auto* other = reinterpret_cast<cudaStream_t>(&stream(3, 0));
         EXPECT_EQ(nccl().AllReduce(p.at(0), p.at(0), 1, ncclInt8, ncclSum, p.comm, other),
                   ncclInvalidArgument);
       },
       {"of another device"}},
      {"FreeTwice",
       true,
       [](Pair&) {
         void* data = nullptr;
         nccl().MemAlloc(&data, 8);
         EXPECT_EQ(nccl().MemFree(data), ncclSuccess);
         EXPECT_EQ(nccl().MemFree(data), ncclInvalidArgument);
       },
       {"ncclMemAlloc has not returned"}},
      {"FreeWhatIsRegistered",
       true,
       [](Pair& p) {
         void* data = nullptr;
         void* handle = nullptr;
         nccl().MemAlloc(&data, 8);
         nccl().CommRegister(p.comm, data, 8, &handle);
         EXPECT_EQ(nccl().MemFree(data), ncclInvalidUsage);
       },
       {"rank 0 of 2 has registered"}},
      {"DeregisterTwice",
       true,
       [](Pair& p) {
         void* handle = nullptr;
         nccl().CommRegister(p.comm, p.at(0), 8, &handle);
         EXPECT_EQ(nccl().CommDeregister(p.comm, handle), ncclSuccess);
         EXPECT_EQ(nccl().CommDeregister(p.comm, handle), ncclInvalidArgument);
       },
       {"has not registered"}},
      {"TwoSizes",
       true,
       [](Pair& p) {
         ncclUniqueId id = p.me.id;
         id.internal[30] = 'x';
         ncclComm_t other = nullptr;
         nccl().CommInitRankConfig(&other, 3 + p.me.rank, id, p.me.rank, nullptr);
       },
       {"joins a communicator of "}},
      {"TwoOfARank",
       true,
       [](Pair& p) {
         ncclComm_t again = nullptr;
         nccl().CommInitRankConfig(&again, 2, p.me.id, p.me.rank, nullptr);
       },
       {"rank 0 of 2 comes twice"}},
  };
}

using Parameters = std::tuple<Case, Schedule>;

/// Runs a case on two ranks; returns the reports.
std::string reports_of(const Parameters& parameters) {
  const auto& [tested, schedule] = parameters;
  set_schedule(schedule);
  on_threads(2, [&tested = tested](const NcclRank& rank) {
    Pair pair(rank, tested.blocking);
    tested.run(pair);
    try {
      rank.stream.synchronize();
    } catch (const DeviceError&) {
      reset_device(rank.rank);
    }
    ncclResult_t state = ncclSuccess;
    if (nccl().CommGetAsyncError(pair.comm, &state) == ncclSuccess) nccl().CommAbort(pair.comm);
  });
  return nccl().SimulatedTakeReports();
}

class Misuses : public ::testing::TestWithParam<Parameters> {};

std::string name_of(const ::testing::TestParamInfo<Parameters>& info) {
  return std::get<Case>(info.param).name + std::string("_") +
         ::testing::PrintToString(std::get<Schedule>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Disagreement, Misuses,
                         ::testing::Combine(::testing::ValuesIn(disagreements()), kEverySchedule),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Call, Misuses,
                         ::testing::Combine(::testing::ValuesIn(wrong_calls()),
                                            ::testing::Values(Schedule::kEager)),
                         name_of);

/// Two ranks disagree; the third is not concerned, and does not hang.
void disagree(const NcclRank& rank) {
  Pair ranks(rank);
  if (rank.rank == 0) {
    ranks.send(1, 2);
  } else {
    ranks.receive(0, 1);
  }
  EXPECT_THROW(rank.stream.synchronize(), DeviceError);
  reset_device(rank.rank);
  ncclResult_t state = ncclSuccess;
  EXPECT_EQ(nccl().CommGetAsyncError(ranks.comm, &state), ncclSuccess);
  EXPECT_EQ(state, ncclInvalidUsage);
  EXPECT_THAT(nccl().GetLastError(ranks.comm), AllOf(HasSubstr("rank 0"), HasSubstr("rank 1")));
  EXPECT_EQ(nccl().CommAbort(ranks.comm), ncclSuccess);
}

TEST(AMisuse, IsToldToAllThreads) {
  on_threads(3, disagree);
  EXPECT_THAT(nccl().SimulatedTakeReports(), HasSubstr("make different calls"));
}

TEST(AMisuse, IsToldToAllProcesses) {
  on_processes(3, [](const NcclRank& rank) {
    disagree(rank);
    EXPECT_THAT(nccl().SimulatedTakeReports(), HasSubstr("make different calls"));
  });
}

TEST_P(Misuses, IsReported) {
  const std::string reports = reports_of(GetParam());
  for (const char* part : std::get<Case>(GetParam()).report) EXPECT_THAT(reports, HasSubstr(part));
  EXPECT_THAT(reports, AllOf(HasSubstr("\nwhy: "), HasSubstr("\nfix: ")));
}

}  // namespace
}  // namespace farandole::sim
