// SPDX-License-Identifier: Apache-2.0
// Ranks that fail, hang, die or never come: nobody waits for ever, and errors say why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "nccl/device_ranks.h"
#include "simulated_nccl/device_buffer.h"
#include "support/directory_store.h"
#include "support/forked_child.h"
#include "support/raised.h"

namespace farandole::test {
namespace {

using comm::DataType;
using comm::ReduceOp;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

void all_reduce(const DeviceRank& rank, const sim::DeviceBuffer& data) {
  rank.group.all_reduce(data.data(), data.data(), 1, DataType::kFloat32, ReduceOp::kSum,
                        rank.options());
}

/// As a watchdog does, until it has something to tell.
void watch(const DeviceRank& rank) {
  const auto deadline = steady_clock::now() + rank_deadline();
  while (steady_clock::now() < deadline) {
    rank.group.check_alive();
    std::this_thread::sleep_for(milliseconds(5));
  }
}

class NcclFailure : public NcclCommunicatorTest {};
INSTANTIATE_TEST_SUITE_P(, NcclFailure, sim::kEverySchedule, ::testing::PrintToStringParamName());

TEST_P(NcclFailure, OfACallIsToldToAllRanks) {
  inject("ncclAllReduce", 1, 1, ncclSimulatedReturn, ncclSystemError);
  run_device_ranks(2, [](DeviceRank& rank) {
    const sim::DeviceBuffer data(rank.stream, std::vector<char>(4));
    all_reduce(rank, data);
    rank.stream.synchronize();
    if (rank.group.rank() == 1) {
      const auto failed = AllOf(HasSubstr("ncclAllReduce failed in group 'test' on rank 1 of 2"),
                                HasSubstr("injected"), HasSubstr("[nccl-failed]"));
      EXPECT_THAT(raised<CommError>([&] { all_reduce(rank, data); }), failed);
      EXPECT_THAT(raised<CommError>([&] { all_reduce(rank, data); }), failed);
      EXPECT_THAT(raised<CommError>([&] { rank.group.check_alive(); }), failed);
    } else {
      EXPECT_THAT(raised<AbortedError>([&] {
                    all_reduce(rank, data);
                    watch(rank);
                  }),
                  AllOf(HasSubstr("rank 1"), HasSubstr("ncclAllReduce failed")));
      raised<AbortedError>([&] { all_reduce(rank, data); });
    }
    rank.stream.synchronize();  // nothing hangs on the device
  });
}

TEST_P(NcclFailure, OfWhatIsEnqueuedIsToldToAllRanks) {
  inject("ncclAllReduce", 1, 0, ncclSimulatedAsyncError, ncclInternalError);
  run_device_ranks(2, [](DeviceRank& rank) {
    const sim::DeviceBuffer data(rank.stream, std::vector<char>(4));
    const auto run_and_watch = [&] {
      all_reduce(rank, data);
      rank.stream.query();  // a lazy stream runs
      watch(rank);
    };
    if (rank.group.rank() == 1) {
      EXPECT_THAT(raised<CommError>(run_and_watch), HasSubstr("[nccl-failed]"));
    } else {
      EXPECT_THAT(raised<AbortedError>(run_and_watch), HasSubstr("rank 1"));
    }
    rank.stream.synchronize();
  });
}

TEST_P(NcclFailure, OfAGroupNamesTheCallThatFailed) {
  inject("ncclSend", 0, 0, ncclSimulatedReturn, ncclInvalidArgument);
  run_device_ranks(2, [](DeviceRank& rank) {
    const sim::DeviceBuffer data(rank.stream, std::vector<char>(16));
    const auto exchange = [&] {
      rank.group.all_to_all(data.data(), data.data() + 8, 1, DataType::kFloat32, rank.options());
    };
    if (rank.group.rank() == 0) {
      EXPECT_THAT(raised<CommError>(exchange), HasSubstr("ncclSend failed"));
    } else {
      raised<CommError>([&] {
        exchange();
        watch(rank);
      });
    }
    rank.stream.synchronize();
  });
}

TEST_P(NcclFailure, AbortEndsWhatHangsOnAllRanks) {
  inject("ncclAllReduce", 0, 0, ncclSimulatedHang);
  run_device_ranks(2, [](DeviceRank& rank) {
    const sim::DeviceBuffer data(rank.stream, std::vector<char>(4));
    all_reduce(rank, data);
    rank.stream.query();
    rank.group.control()->barrier();
    if (rank.group.rank() == 0) {
      rank.group.abort("the test is over");
    } else {
      EXPECT_THAT(raised<AbortedError>([&] { watch(rank); }), HasSubstr("the test is over"));
    }
    EXPECT_THAT(raised<AbortedError>([&] { all_reduce(rank, data); }),
                HasSubstr("the test is over"));
    rank.stream.synchronize();
  });
}

TEST_P(NcclFailure, AbortByAnotherThreadEndsACallThatWaits) {
  inject("ncclCommSplit", 0, 0, ncclSimulatedAbsence);
  run_device_ranks(2, [](DeviceRank& rank) {
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(100));
      if (rank.group.rank() == 1) rank.group.abort("split takes too long");
    });
    const auto begin = steady_clock::now();
    EXPECT_THAT(raised<AbortedError>([&] {
                  rank.group.split({0, 1}, rank.group.control());
                }),
                HasSubstr("split takes too long"));
    EXPECT_LT(steady_clock::now() - begin, milliseconds(100) + detection_limit());
    other.join();
  });
}

TEST_P(NcclFailure, AbortInAnOpenGroupEndsIt) {
  run_device_ranks(2, [](DeviceRank& rank) {
    const sim::DeviceBuffer data(rank.stream, std::vector<char>(4));
    rank.group.begin_group();
    all_reduce(rank, data);
    rank.group.control()->barrier();
    if (rank.group.rank() == 0) {
      std::thread([&] { rank.group.abort("enough"); }).join();
      EXPECT_THAT(raised<AbortedError>([&] { rank.group.end_group(); }), HasSubstr("enough"));
    } else {
      raised<AbortedError>([&] {
        rank.group.end_group();
        watch(rank);
      });
    }
    rank.stream.synchronize();
  });
}

TEST_P(NcclFailure, ARankThatDoesNotComeToACallIsATimeout) {
  inject("ncclCommSplit", 0, 0, ncclSimulatedAbsence);
  run_device_ranks(2, [](DeviceRank& rank) {
    rank.group.set_timeout(milliseconds(200));
    const std::string error = raised<CommError>([&] {
      rank.group.split({0, 1}, rank.group.control());
    });
    EXPECT_THAT(error, AnyOf(HasSubstr("[nccl-timeout]"), HasSubstr("gave up")));
    EXPECT_THAT(error, HasSubstr("200 ms"));
  });
}

TEST_P(NcclFailure, ARankThatNeverComesToTheFormationIsATimeout) {
  inject("ncclCommInitRankConfig", 1, 0, ncclSimulatedAbsence);
  run_thread_ranks(2, [](comm::Communicator& control) {
    sim::set_current_device(control.rank());
    comm::CommunicatorOptions options = device_options(control);
    options.formation_timeout = milliseconds(300);
    const std::string error = raised<CommError>([&] { make_device_communicator(options); });
    EXPECT_THAT(error, AnyOf(HasSubstr("[nccl-timeout]"), HasSubstr("gave up")));
    EXPECT_THAT(error, HasSubstr("ncclCommInitRankConfig in group 'test'"));
  });
}

TEST_P(NcclFailure, OfTheFormationIsToldToAllRanks) {
  inject("ncclCommInitRankConfig", 1, 0, ncclSimulatedReturn, ncclInvalidUsage);
  run_thread_ranks(2, [](comm::Communicator& control) {
    sim::set_current_device(control.rank());
    const auto begin = steady_clock::now();
    EXPECT_THAT(raised<CommError>([&] { make_device_communicator(device_options(control)); }),
                HasSubstr("ncclCommInitRankConfig failed"));
    EXPECT_LT(steady_clock::now() - begin, detection_limit());
  });
}

TEST_P(NcclFailure, DeathOfAProcessEndsWhatHangs) {
  RankOptions options;
  options.expected_to_die = {1};
  inject("ncclAllReduce", 1, 1, ncclSimulatedDeath);
  const TemporaryDirectory folder;
  const auto body = [&](DeviceRank& rank) {
    const sim::DeviceBuffer data(rank.stream, std::vector<char>(4));
    all_reduce(rank, data);
    rank.stream.synchronize();
    const auto begin = steady_clock::now();
    EXPECT_THAT(raised<PeerFailure>([&] {
                  all_reduce(rank, data);
                  rank.stream.query();
                  watch(rank);
                }),
                HasSubstr("rank 1"));
    EXPECT_LT(steady_clock::now() - begin, detection_limit());
    rank.stream.synchronize();
    raised<PeerFailure>([&] { all_reduce(rank, data); });
    DirectoryStore store(folder.path());  // an exit is an end, too: only when both were told
    store.set(std::to_string(rank.group.rank()), "told");
    store.get(std::to_string(2 - rank.group.rank()), rank_deadline());
  };
  run_process_ranks(3, on_device(body), options);
}

TEST_P(NcclFailure, SurvivorsOfADeathShrink) {
  RankOptions options;
  options.expected_to_die = {2};
  inject("ncclAllReduce", 2, 0, ncclSimulatedDeath);
  const TemporaryDirectory folder;
  run_process_ranks(3, on_device([&](DeviceRank& rank) {
                      const sim::DeviceBuffer lost(rank.stream, std::vector<char>(4));
                      raised<PeerFailure>([&] {
                        all_reduce(rank, lost);
                        rank.stream.query();
                        watch(rank);
                      });
                      rank.stream.synchronize();
                      DirectoryStore store(folder.path());
                      const auto rest = rank.group.shrink({2}, store);
                      const float own = static_cast<float>(1 + rank.group.rank());
                      std::vector<char> bytes(4);
                      std::memcpy(bytes.data(), &own, 4);
                      const sim::DeviceBuffer data(rank.stream, bytes);
                      rest->all_reduce(data.data(), data.data(), 1, DataType::kFloat32,
                                       ReduceOp::kSum, rank.options());
                      float sum = 0;
                      std::memcpy(&sum, data.read().data(), 4);
                      EXPECT_EQ(sum, 3);
                    }),
                    options);
}

TEST_P(NcclFailure, ARankThatLeavesDoesNotKeepTheOthers) {
  run_device_ranks(2, [](DeviceRank& rank) {
    rank.group.barrier(rank.options());
    rank.stream.synchronize();
    // Rank 1 goes on for longer than rank 0 waits for it.
    if (rank.group.rank() == 1) std::this_thread::sleep_for(milliseconds(2500));
  });
}

TEST(NcclFork, AChildIsNoRankAndEndsWell) {
  run_thread_ranks(1, [](comm::Communicator& control) {
    auto group = make_device_communicator(device_options(control));
    ForkedChild child([&] {
      const bool refused = !raised<CommError>([&] { group->barrier(); }).empty() &&
                           !raised<CommError>([&] { group->check_alive(); }).empty();
      group.reset();
      return refused;
    });
    EXPECT_TRUE(child.succeeded());
    group->check_alive();
  });
}

TEST(NcclLibrary, ThatIsMissingIsToldWithTheWayToGetIt) {
  run_process_ranks(2, [](comm::Communicator& control) {
    comm::CommunicatorOptions options = device_options(control);
    if (control.rank() == 1) options.config.nccl_library = "/nowhere/libnccl.so.2";
    const std::string error = raised<NotSupported>([&] { make_device_communicator(options); });
    if (control.rank() == 1) {
      EXPECT_THAT(error, AllOf(HasSubstr("[nccl-unavailable]"), HasSubstr("/nowhere/libnccl.so.2"),
                               HasSubstr("FARANDOLE_NCCL_LIBRARY")));
    } else {
      EXPECT_THAT(error, AllOf(HasSubstr("[nccl-unavailable-elsewhere]"), HasSubstr("rank 1")));
    }
    control.barrier();  // the group on host memory is unharmed
  });
}

TEST(NcclLibrary, OfAnotherKindIsRefused) {
  run_thread_ranks(1, [](comm::Communicator& control) {
    comm::CommunicatorOptions options = device_options(control);
    options.config.nccl_library = "libm.so.6";
    EXPECT_THAT(raised<NotSupported>([&] { make_device_communicator(options); }),
                HasSubstr("libm.so.6 has no function ncclGetVersion"));
  });
}

TEST(NcclLibrary, CannotChangeInAProcess) {
  run_thread_ranks(1, [](comm::Communicator& control) {
    comm::CommunicatorOptions options = device_options(control);
    make_device_communicator(options);
    options.config.nccl_library = "/nowhere/libnccl.so.2";
    EXPECT_THAT(raised<InvalidArgument>([&] { make_device_communicator(options); }),
                HasSubstr("[nccl-library-changed]"));
  });
}

}  // namespace
}  // namespace farandole::test
