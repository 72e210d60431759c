// SPDX-License-Identifier: Apache-2.0
// Hosts that MPI joins (FARANDOLE_LINK=mpi), emulated under mpirun: the conformance suite, sums,
// calls that differ, ranks that are late, abort, leave or die, and messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "farandole/comm/communicator.h"
#include "farandole/error.h"
#include "mpi/mpi_ranks.h"
#include "support/conformance.h"
#include "support/raised.h"

namespace farandole::test {
namespace {

using comm::Communicator;
using comm::DataType;
using comm::ReduceOp;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr DataType kFloat = DataType::kFloat32;

using Hosts = std::vector<int>;

/// Ranks alone on their hosts, hosts of different sizes, ranks of a host that are not neighbours.
std::vector<Hosts> layouts() {
  switch (MpiProcess::own().world_size) {
    case 2:
      return {{0, 1}};
    case 3:
      return {{0, 1, 2}, {0, 1, 0}};
    default:
      return {{0, 0, 1, 1}, {0, 1, 0, 1}};
  }
}

class MpiLinkConformance : public ::testing::TestWithParam<Operation> {};

TEST_P(MpiLinkConformance, GivesEveryRankExactlyItsResult) {
  constexpr size_t kSlotBytes = 8192;
  for (const Hosts& hosts : layouts()) {
    run_on_mpi_hosts(hosts, [](Communicator& group) {
      CaseMemory memory(group, kSlotBytes);
      for (const Case& each : cases_of(GetParam(), group.world_size(), kSlotBytes,
                                       whole_matrix() ? Selection::kAll : Selection::kPairwise)) {
        ASSERT_EQ(memory.run(group, GetParam(), each), "");
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(MpiLink, MpiLinkConformance, ::testing::ValuesIn(operations()),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST(MpiLink, HoldsThroughManySmallAndLargeCollectives) {
  for (const Hosts& hosts : layouts()) {
    run_on_mpi_hosts(hosts, [](Communicator& group) { mix_sizes(group, 100, 79190, 1900000); });
  }
}

/// The root leaves before the others come.
TEST(MpiLink, DeliversWhatWasSentByARankThatHasGone) {
  run_on_mpi_hosts(layouts().front(), [](Communicator& group) {
    std::vector<float> data(100000, group.rank() == 0 ? 3.0F : 0.0F);
    if (group.rank() != 0) std::this_thread::sleep_for(milliseconds(300));
    group.broadcast(data.data(), data.size(), kFloat, 0);
    EXPECT_EQ(data, std::vector<float>(data.size(), 3.0F));
  });
}

TEST(MpiLink, SeveralGroupsWorkAtOnce) {
  const Hosts hosts = layouts().front();
  run_on_mpi_hosts(hosts, [&](Communicator& first) {
    run_on_mpi_hosts(hosts, [&](Communicator& second) {
      const auto work = [](Communicator& group) {
        for (size_t count = 1; count < 200000; count *= 3) sum(group, count);
      };
      std::thread other([&] { work(first); });
      work(second);
      other.join();
    });
  });
}

TEST(MpiLink, NamesCallsThatDifferOnEveryRankAndGoesOn) {
  run_on_mpi_hosts(layouts().front(), [](Communicator& group) {
    std::vector<float> data(60000, 7.0F);
    std::vector<float> output(60000, 5.0F);
    for (int odd = 0; odd < group.world_size(); ++odd) {
      EXPECT_THAT(raised<MismatchError>([&] {
                    if (group.rank() == odd) {
                      group.broadcast(output.data(), 10, kFloat, 0);
                    } else {
                      group.all_reduce(data.data(), output.data(), data.size(), kFloat,
                                       ReduceOp::kSum);
                    }
                  }),
                  AllOf(HasSubstr("called all_reduce(float32[60000], SUM)"),
                        HasSubstr("called broadcast(float32[10], root=0)")));
      for (const float each : output) ASSERT_EQ(each, 5.0F);
      sum(group, static_cast<size_t>(1 + odd * 1000));
    }
  });
}

TEST(MpiLink, NamesALateRankAndANewGroupGoesOn) {
  const Hosts hosts = layouts().front();
  const int last = MpiProcess::own().world_size - 1;
  run_on_mpi_hosts(hosts, [&](Communicator& group) {
    sum(group, 100000);
    if (group.rank() == last) {
      std::this_thread::sleep_for(milliseconds(1500));
      EXPECT_THROW(sum(group, 500000), CommError);
      return;
    }
    const auto begin = steady_clock::now();
    try {
      sum(group, 500000, milliseconds(400));
      ADD_FAILURE() << "threw nothing";
    } catch (const TimeoutError& error) {
      EXPECT_THAT(error.what(), HasSubstr("timeout of 400 ms"));
    } catch (const AbortedError&) {  // of another rank that was quicker
    }
    EXPECT_LT(steady_clock::now() - begin, milliseconds(400) + detection_limit());
  });
  run_on_mpi_hosts(hosts, [](Communicator& group) { sum(group, 300000); });
}

TEST(MpiLink, TellsWaitingRanksOfAnAbort) {
  run_on_mpi_hosts(layouts().front(), [](Communicator& group) {
    sum(group, 10);
    if (group.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(200));
      group.abort("enough");
      EXPECT_THROW(sum(group, 1), AbortedError);
      return;
    }
    const auto begin = steady_clock::now();
    EXPECT_THAT(raised<AbortedError>([&] { sum(group, 10); }), HasSubstr("enough"));
    EXPECT_LT(steady_clock::now() - begin, milliseconds(200) + detection_limit());
  });
}

TEST(MpiLink, NamesARankThatHasLeftAndShrinks) {
  const int last = MpiProcess::own().world_size - 1;
  run_on_mpi_hosts(layouts().front(), [&](Communicator& group) {
    if (group.rank() == last) return sum(group, 10);
    // The news of others may come before their part of the first one.
    EXPECT_THAT(raised<PeerFailure>([&] {
                  sum(group, 10);
                  sum(group, 10);
                }),
                HasSubstr("rank " + std::to_string(last)));
    const auto rest = group.shrink({last}, job_store());
    EXPECT_EQ(rest->world_size(), last);
    sum(*rest, 200000);
  });
}

TEST(MpiLink, CarriesMessagesToo) {
  run_on_mpi_hosts(layouts().front(), [](Communicator& group) {
    const int next = (group.rank() + 1) % group.world_size();
    const int previous = (group.rank() + group.world_size() - 1) % group.world_size();
    const std::vector<char> data(3000000, static_cast<char>(group.rank()));
    std::vector<char> received(data.size());
    const auto sent = group.send(data.data(), data.size(), next, 1);
    group.receive(received.data(), received.size(), previous, 1)->wait(milliseconds(0));
    sent->wait(milliseconds(0));
    EXPECT_EQ(received, std::vector<char>(data.size(), static_cast<char>(previous)));
  });
}

TEST(MpiLink, AForkedChildLeavesItAlone) {
  run_on_mpi_hosts(layouts().front(), [](Communicator& group) {
    sum(group, 1000);
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        sum(group, 1000);
      } catch (const CommError&) {
        ::_exit(0);
      }
      ::_exit(1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    sum(group, 1000);
  });
}

TEST(MpiLink, RefusesRanksThatDifferInTheirLink) {
  auto options = options_of_job("differ");
  options.config.network_interface = "lo";
  options.config.host_id = "emulated-" + std::to_string(options.rank);
  options.config.link = options.rank == 0 ? HostLinkChoice::kMpi : HostLinkChoice::kTcp;
  try {
    comm::make_communicator("tcp", job_store(), options);
    ADD_FAILURE() << "threw nothing";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("FARANDOLE_LINK is mpi on rank 0 and tcp on rank "));
  }
}

/// Under mpirun --with-ft ulfm.
TEST(WithFaultToleranceBetweenHosts, ADeathOnAnotherHostIsNamedOnEverySurvivor) {
  const int last = MpiProcess::own().world_size - 1;
  run_on_mpi_hosts({0, 0, 1}, [&](Communicator& group) {
    sum(group, 300000);
    if (group.rank() == last) {
      std::this_thread::sleep_for(milliseconds(300));
      ::raise(SIGKILL);
    }
    try {
      sum(group, 300000);
      ADD_FAILURE() << "threw nothing";
    } catch (const PeerFailure& error) {
      EXPECT_EQ(error.ranks(), std::vector<int>{last});
    }
    const auto rest = group.shrink({last}, job_store());
    sum(*rest, 1000);
    // The root ends before the other comes, and nobody finalizes MPI.
    std::vector<float> data(3000000, rest->rank() == 0 ? 3.0F : 0.0F);
    if (rest->rank() != 0) std::this_thread::sleep_for(milliseconds(700));
    rest->broadcast(data.data(), data.size(), kFloat, 0);
    EXPECT_EQ(data.back(), 3.0F);
  });
}

/// Rank 1 ends by exit() while its group lives: it is told before MPI waits for the others.
TEST(WithAnExit, IsToldLikeAGoodbye) {
  const auto exits = [](Communicator& group) {
    sum(group, 1000);
    if (group.rank() == 1) std::exit(0);
    const auto begin = steady_clock::now();
    EXPECT_THAT(raised<PeerFailure>([&] { sum(group, 300000); }), HasSubstr("rank 1"));
    EXPECT_LT(steady_clock::now() - begin, 2 * detection_limit());
  };
  run_on_mpi_hosts({0, 1}, exits);
}

/// A store in which MPI's part of the formation comes late on one rank.
class LateStore final : public comm::Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    job_store().set(key, value);
  }
  std::optional<std::string> get(const std::string& key, milliseconds timeout) override {
    const auto value = job_store().get(key, timeout);
    const std::string suffix = "/mpi";
    if (value && key.size() > suffix.size() &&
        key.compare(key.size() - suffix.size(), suffix.size(), suffix) == 0) {
      std::this_thread::sleep_for(milliseconds(3000));
    }
    return value;
  }
};

TEST(MpiLink, FormsWithinItsTimeoutOrNotAtAll) {
  auto options = options_of_job("late");
  options.config.link = HostLinkChoice::kMpi;
  options.config.network_interface = "lo";
  options.config.host_id = "emulated-" + std::to_string(options.rank);
  const int last = options.world_size - 1;
  options.config.timeout = milliseconds(options.rank == last ? 30000 : 1500);
  LateStore late;
  const auto begin = steady_clock::now();
  try {
    comm::make_communicator("tcp", options.rank == last ? late : job_store(), options);
    ADD_FAILURE() << "threw nothing";
  } catch (const CommError&) {
  }
  if (options.rank != last) {
    EXPECT_LT(steady_clock::now() - begin, milliseconds(1500) + detection_limit());
  }
}

TEST(WithoutMpirun, HostsCannotBeJoinedByMpi) {
  RankOptions options;
  options.hosts = {0, 1};
  options.config.link = HostLinkChoice::kMpi;
  EXPECT_THAT(raised<NotSupported>([&] {
                run_thread_ranks(
                    2, [](Communicator&) {}, options);
              }),
              AllOf(HasSubstr("cannot use MPI between hosts"), HasSubstr("unset FARANDOLE_LINK")));
}

}  // namespace
}  // namespace farandole::test
