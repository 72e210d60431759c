// SPDX-License-Identifier: Apache-2.0
// MpiCommunicator under mpirun: the conformance suite, calls that differ, ranks that are late,
// abort or leave, parts of a job. CTest starts this program on 2 and 3 ranks, with fault
// tolerance for WithFaultTolerance, and without mpirun for WithoutMpirun.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "farandole/comm/communicator.h"
#include "farandole/error.h"
#include "kernels/half_types.h"
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

class MpiConformance : public ::testing::TestWithParam<Operation> {};

TEST_P(MpiConformance, GivesEveryRankExactlyItsResult) {
  constexpr size_t kSlotBytes = 8192;
  run_on_mpi_ranks([](Communicator& group) {
    CaseMemory memory(group, kSlotBytes);
    for (const Case& each : cases_of(GetParam(), group.world_size(), kSlotBytes,
                                     whole_matrix() ? Selection::kAll : Selection::kPairwise)) {
      const std::string problem = memory.run(group, GetParam(), each);
      ASSERT_EQ(problem, "");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Mpi, MpiConformance, ::testing::ValuesIn(operations()),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST(MpiCommunicator, HoldsThroughManySmallAndLargeCollectives) {
  run_on_mpi_ranks([](Communicator& group) { mix_sizes(group, 300, 7919, 90000); });
}

TEST(MpiCommunicator, KeepsNaNsAndLargeHalves) {
  run_on_mpi_ranks([](Communicator& group) {
    std::vector<float> values{1.0F, 2.0F};
    if (group.rank() == 1) values[1] = NAN;
    group.all_reduce(values.data(), values.data(), 2, kFloat, ReduceOp::kMax);
    EXPECT_EQ(values[0], 1.0F);
    EXPECT_TRUE(std::isnan(values[1]));
    const uint16_t large = comm::Float16::from(60000.0F).bits;
    std::vector<uint16_t> halves(5, large);
    group.all_reduce(halves.data(), halves.data(), 5, DataType::kFloat16, ReduceOp::kAvg);
    EXPECT_EQ(halves, std::vector<uint16_t>(5, large));
    EXPECT_EQ(group.shared_memory(), nullptr);
  });
}

TEST(MpiCommunicator, NamesCallsThatDifferOnEveryRankAndGoesOn) {
  run_on_mpi_ranks([](Communicator& group) {
    std::vector<float> data(60000, 7.0F);
    std::vector<float> output(60000, 5.0F);
    for (int odd = 0; odd < group.world_size(); ++odd) {
      const std::string text = raised<MismatchError>([&] {
        if (group.rank() == odd) {
          group.broadcast(output.data(), 10, kFloat, 0);
        } else {
          group.all_reduce(data.data(), output.data(), data.size(), kFloat, ReduceOp::kSum);
        }
      });
      EXPECT_THAT(text, AllOf(HasSubstr("called all_reduce(float32[60000], SUM)"),
                              HasSubstr("called broadcast(float32[10], root=0)"),
                              HasSubstr("rank 0 called")));
      for (const float each : output) ASSERT_EQ(each, 5.0F);
      sum(group, static_cast<size_t>(1 + odd * 1000));
    }
    std::vector<size_t> sends(static_cast<size_t>(group.world_size()), 10);
    const std::vector<size_t> receives = sends;
    if (group.rank() == 1) sends[0] = 9;
    EXPECT_THAT(raised<MismatchError>([&] {
                  group.all_to_all_v(data.data(), sends.data(), output.data(), receives.data(),
                                     kFloat);
                }),
                HasSubstr("rank 1 sends 9 elements to rank 0, which expects 10"));
    sum(group, 1000);
  });
}

TEST(MpiCommunicator, NamesALateRank) {
  run_on_mpi_ranks([](Communicator& group) {
    sum(group, 10);
    if (group.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(1200));
      EXPECT_THAT(raised<AbortedError>([&] { sum(group, 10); }), HasSubstr("timeout of 400 ms"));
      return;
    }
    const auto begin = steady_clock::now();
    try {
      sum(group, 10, milliseconds(400));
      ADD_FAILURE() << "threw nothing";
    } catch (const TimeoutError& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("rank 1 (pid "), HasSubstr("last reached collective #2")));
      EXPECT_EQ(error.ranks(), std::vector<int>{1});
    } catch (const AbortedError&) {  // of another rank that was quicker
      EXPECT_GT(group.world_size(), 2);
    }
    EXPECT_LT(steady_clock::now() - begin, milliseconds(400) + detection_limit());
    EXPECT_THROW(group.check_usable(), AbortedError);
  });
}

TEST(MpiCommunicator, TellsWaitingRanksOfAnAbort) {
  run_on_mpi_ranks([](Communicator& group) {
    sum(group, 10);
    if (group.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(200));
      group.abort("enough");
      EXPECT_THROW(sum(group, 1), AbortedError);
      return;
    }
    const auto begin = steady_clock::now();
    EXPECT_THAT(raised<AbortedError>([&] { sum(group, 10); }),
                AllOf(HasSubstr("aborted by rank 0"), HasSubstr("enough")));
    EXPECT_LT(steady_clock::now() - begin, milliseconds(200) + detection_limit());
  });
}

TEST(MpiCommunicator, NamesARankThatHasLeft) {
  const int last = MpiProcess::own().world_size - 1;
  run_on_mpi_ranks([&](Communicator& group) {
    sum(group, 10);
    if (group.rank() == last) return;
    try {
      sum(group, 10);
      ADD_FAILURE() << "threw nothing";
    } catch (const PeerFailure& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(last)));
      EXPECT_EQ(error.ranks(), std::vector<int>{last});
    }
  });
}

TEST(MpiCommunicator, ShrinksToTheRanksThatRemain) {
  const int last = MpiProcess::own().world_size - 1;
  run_on_mpi_ranks([&](Communicator& group) {
    if (group.rank() == last) return;
    const auto rest = group.shrink({last}, job_store());
    EXPECT_EQ(rest->world_size(), last);
    sum(*rest, 1000);
  });
}

/// The job's ranks from 1 on, in reverse order.
TEST(MpiCommunicator, MayBeAPartOfTheJobInAnyOrder) {
  const MpiProcess own = MpiProcess::own();
  if (own.rank == 0) return;
  comm::CommunicatorOptions options = options_of_job("part");
  options.world_size = own.world_size - 1;
  options.rank = own.world_size - 1 - own.rank;
  const auto group = comm::make_communicator("mpi", job_store(), options);
  int64_t word = own.rank;
  std::vector<int64_t> all(static_cast<size_t>(options.world_size));
  group->all_gather(&word, all.data(), 1, DataType::kInt64);
  for (int rank = 0; rank < options.world_size; ++rank) {
    EXPECT_EQ(all[static_cast<size_t>(rank)], own.world_size - 1 - rank);
  }
}

TEST(MpiMessages, OfEverySizeAndTagFromAnySource) {
  run_on_mpi_ranks([](Communicator& group) {
    const int world = group.world_size();
    for (const size_t size : {size_t{0}, size_t{1}, size_t{5000}, size_t{3000000}}) {
      if (group.rank() != 0) {
        const std::vector<char> data(size, static_cast<char>(group.rank()));
        group.send(data.data(), size, 0, uint64_t{1} << 60)->wait(milliseconds(0));
      }
      for (int i = 1; group.rank() == 0 && i < world; ++i) {
        std::vector<char> data(size);
        const auto receive =
            group.receive(data.data(), size, Communicator::kAnySource, uint64_t{1} << 60);
        receive->wait(milliseconds(0));
        EXPECT_EQ(data, std::vector<char>(size, static_cast<char>(receive->peer())));
      }
      group.barrier();
    }
  });
}

TEST(MpiMessages, MatchByTagWhileNobodyWaits) {
  run_on_mpi_ranks([](Communicator& group) {
    const size_t large = 4000000;
    const std::vector<char> first(large, 'a');
    const std::vector<char> second(10, 'b');
    if (group.rank() == 0) {
      const auto one = group.send(first.data(), large, 1, 5);
      const auto two = group.send(second.data(), 10, 1, 6);
      group.barrier();  // rank 1 has received by then
      EXPECT_TRUE(one->is_done());
      EXPECT_TRUE(two->is_done());
    } else {
      std::vector<char> small(10);
      std::vector<char> data(large);
      if (group.rank() == 1) {
        group.receive(small.data(), 10, 0, 6)->wait(milliseconds(0));
        group.receive(data.data(), large, 0, 5)->wait(milliseconds(0));
        EXPECT_EQ(small, second);
        EXPECT_EQ(data, first);
      }
      group.barrier();
    }
  });
}

TEST(MpiMessages, BothSidesMaySendFirstAndToThemselves) {
  run_on_mpi_ranks([](Communicator& group) {
    const int next = (group.rank() + 1) % group.world_size();
    const int previous = (group.rank() + group.world_size() - 1) % group.world_size();
    const std::vector<char> data(6000000, static_cast<char>(group.rank()));
    std::vector<char> received(data.size());
    const auto sent = group.send(data.data(), data.size(), next, 1);
    const auto own = group.send(data.data(), 3, group.rank(), 2);
    group.receive(received.data(), received.size(), previous, 1)->wait(milliseconds(0));
    EXPECT_EQ(received, std::vector<char>(data.size(), static_cast<char>(previous)));
    group.receive(received.data(), 3, group.rank(), 2)->wait(milliseconds(0));
    sent->wait(milliseconds(0));
    own->wait(milliseconds(0));
    EXPECT_THAT(raised<InvalidArgument>([&] {
                  group.receive(received.data(), 3, group.rank(), 9)->wait(milliseconds(0));
                }),
                HasSubstr("message from itself"));
  });
}

TEST(MpiMessages, NameSizesThatDifferAndGoOn) {
  run_on_mpi_ranks([](Communicator& group) {
    std::vector<char> data(200000, 'x');
    if (group.rank() == 0) {
      group.send(data.data(), data.size(), 1, 3)->wait(milliseconds(0));
      group.send(data.data(), 5, 1, 3)->wait(milliseconds(0));
    } else if (group.rank() == 1) {
      EXPECT_THAT(raised<MismatchError>(
                      [&] { group.receive(data.data(), 100, 0, 3)->wait(milliseconds(0)); }),
                  AllOf(HasSubstr("200000 bytes from rank 0"), HasSubstr("100 bytes")));
      group.receive(data.data(), 5, 0, 3)->wait(milliseconds(0));
    }
    group.barrier();
  });
}

TEST(MpiMessages, NameAPeerThatNeverPosts) {
  run_on_mpi_ranks([](Communicator& group) {
    if (group.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(800));
      EXPECT_THROW(sum(group, 1), CommError);
      return;
    }
    if (group.rank() > 1) return;
    char byte = 0;
    EXPECT_THAT(
        raised<TimeoutError>([&] { group.receive(&byte, 1, 1, 4)->wait(milliseconds(300)); }),
        HasSubstr("timeout of 300 ms"));
  });
}

/// Under mpirun --with-ft ulfm.
TEST(WithFaultTolerance, ADeathIsNamedOnEverySurvivor) {
  const int last = MpiProcess::own().world_size - 1;
  run_on_mpi_ranks([&](Communicator& group) {
    sum(group, 10);
    if (group.rank() == last) {
      std::this_thread::sleep_for(milliseconds(300));
      ::raise(SIGKILL);
    }
    try {
      sum(group, 10);
      ADD_FAILURE() << "threw nothing";
    } catch (const PeerFailure& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(last) + " (pid "));
      EXPECT_EQ(error.ranks(), std::vector<int>{last});
    }
    const auto rest = group.shrink({last}, job_store());
    sum(*rest, 1000);
  });
}

TEST(WithoutMpirun, OneRankMayBeAlone) {
  run_on_mpi_ranks([](Communicator& group) { sum(group, 1000); });
}

TEST(WithoutMpirun, SeveralRanksAreToldToStartIt) {
  RankOptions options;
  options.backend = "mpi";
  EXPECT_THAT(raised<NotSupported>([&] {
                run_thread_ranks(
                    2, [](Communicator&) {}, options);
              }),
              AllOf(HasSubstr("not processes of one MPI job"),
                    HasSubstr("rank 1 is process 0 of 1"), HasSubstr("mpirun")));
}

}  // namespace
}  // namespace farandole::test
