// SPDX-License-Identifier: Apache-2.0
// Groups of several hosts, beyond the conformance suite: sums, calls that differ, ranks that die,
// are late, leave or are excluded. Hosts are emulated on the loopback interface.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "comm/hosts/host_map.h"
#include "farandole/comm/communicator.h"
#include "farandole/error.h"
#include "kernels/half_types.h"
#include "support/directory_store.h"
#include "support/raised.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

using comm::CollectiveOptions;
using comm::Communicator;
using comm::DataType;
using comm::ReduceOp;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr DataType kFloat = DataType::kFloat32;

using Hosts = std::vector<int>;

/// Two hosts, hosts of different sizes, ranks alone on theirs.
const std::vector<Hosts> kHosts{
    {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 1, 1, 1}, {1, 0, 0, 2, 2}, {0, 1, 2}};

RankOptions on(const Hosts& hosts, std::vector<int> expected_to_die = {}) {
  return {Config(), std::move(expected_to_die), "tcp", hosts};
}

int world_of(const Hosts& hosts) { return static_cast<int>(hosts.size()); }

void sum(Communicator& group, size_t count, milliseconds timeout = milliseconds(0)) {
  std::vector<float> data(count, 1.0F);
  CollectiveOptions options;
  options.timeout = timeout;
  group.all_reduce(data.data(), data.data(), count, kFloat, ReduceOp::kSum, options);
  for (const float each : data) ASSERT_EQ(each, static_cast<float>(group.world_size()));
}

TEST(HostMap, LetsEveryRankHearEachOtherHostOnce) {
  for (const Hosts& hosts : kHosts) {
    comm::Topology topology;
    topology.world_size = world_of(hosts);
    topology.host_of_rank = hosts;
    topology.host_names.resize(std::set<int>(hosts.begin(), hosts.end()).size());
    const comm::hosts::HostMap map(topology);
    for (int rank = 0; rank < topology.world_size; ++rank) {
      std::vector<int> heard;
      for (int peer = 0; peer < topology.world_size; ++peer) {
        if (map.sends(peer, rank)) heard.push_back(map.host_of(peer));
        const auto peers = map.peers_of(rank);
        EXPECT_EQ(map.sends(peer, rank) || map.sends(rank, peer),
                  std::count(peers.begin(), peers.end(), peer) == 1);
      }
      std::sort(heard.begin(), heard.end());
      EXPECT_EQ(heard.size(), topology.host_names.size() - 1);
      EXPECT_EQ(std::adjacent_find(heard.begin(), heard.end()), heard.end());
    }
  }
}

/// Dies when the others have left the collective before.
void die() {
  std::this_thread::sleep_for(milliseconds(100));
  ::raise(SIGKILL);
}

/// Ranks of a host first, in rank order, then hosts by their first rank: floats that show the
/// order.
TEST(MultiHost, SumsRanksOfAHostThenHosts) {
  const std::vector<float> values{1.0F, 1e8F, 3.0F, -1e8F};
  const float expected = ((1.0F + 3.0F)) + (1e8F + -1e8F);
  run_thread_ranks(
      4,
      [&](Communicator& group) {
        for (const size_t count : {size_t{1}, size_t{100000}}) {
          std::vector<float> data(count, values[static_cast<size_t>(group.rank())]);
          group.all_reduce(data.data(), data.data(), count, kFloat, ReduceOp::kSum);
          EXPECT_EQ(data.front(), expected);
          EXPECT_EQ(data.back(), expected);
        }
      },
      on({0, 1, 0, 1}));
}

TEST(MultiHost, RanksOfAJobWithASecretCollectAndSendMessages) {
  RankOptions options = on({0, 1, 0, 1});
  options.config.job_secret = std::string(40, 's');
  run_thread_ranks(
      4,
      [](Communicator& group) {
        sum(group, 1000);
        const int next = (group.rank() + 1) % 4;
        const int before = (group.rank() + 3) % 4;
        const int mine = group.rank() + 40;
        int other = 0;
        const auto sent = group.send(&mine, sizeof(mine), next, 7);
        group.receive(&other, sizeof(other), before, 7)->wait(milliseconds(0));
        sent->wait(milliseconds(0));
        EXPECT_EQ(other, before + 40);
        group.barrier();  // a rank that leaves cuts off messages to it
      },
      options);
}

TEST(MultiHost, AveragesOfFloat16DoNotOverflowOnAHost) {
  run_thread_ranks(
      4,
      [](Communicator& group) {
        const uint16_t large = comm::Float16::from(30000.0F).bits;
        std::vector<uint16_t> data(5, large);
        group.all_reduce(data.data(), data.data(), 5, DataType::kFloat16, ReduceOp::kAvg);
        EXPECT_EQ(data, std::vector<uint16_t>(5, large));
      },
      on({0, 0, 0, 1}));
}

TEST(MultiHost, SharesMemoryWhereAllRanksAreOnOneHost) {
  run_thread_ranks(
      2, [](Communicator& group) { EXPECT_NE(group.shared_memory(), nullptr); }, on({0, 0}));
}

TEST(MultiHost, GivesTheSameBitsOnEveryRankAndInEveryRun) {
  for (const Hosts& hosts : kHosts) {
    std::vector<std::vector<float>> results(hosts.size() * 2);
    for (size_t run = 0; run < 2; ++run) {
      run_thread_ranks(
          world_of(hosts),
          [&](Communicator& group) {
            std::vector<float> data(300001);
            for (size_t i = 0; i < data.size(); ++i) {
              data[i] = std::sin(static_cast<float>(i * 7 + static_cast<size_t>(group.rank())));
            }
            group.all_reduce(data.data(), data.data(), data.size(), kFloat, ReduceOp::kAvg);
            results[run * hosts.size() + static_cast<size_t>(group.rank())] = data;
          },
          on(hosts));
    }
    for (const auto& each : results) ASSERT_EQ(each, results.front());
  }
}

TEST(MultiHost, NamesCallsThatDifferOnEveryRankAndGoesOn) {
  constexpr size_t kCount = 600000;  // several turns
  for (const Hosts& hosts : kHosts) {
    run_thread_ranks(
        world_of(hosts),
        [](Communicator& group) {
          std::vector<float> data(kCount, 7.0F);
          std::vector<float> output(kCount, 5.0F);
          for (int odd = 0; odd < group.world_size(); ++odd) {
            const std::string text = raised<MismatchError>([&] {
              if (group.rank() == odd) {
                group.broadcast(output.data(), 10, kFloat, 0);
              } else {
                group.all_reduce(data.data(), output.data(), kCount, kFloat, ReduceOp::kSum);
              }
            });
            EXPECT_THAT(text, AllOf(HasSubstr("called all_reduce(float32[600000], SUM)"),
                                    HasSubstr("called broadcast(float32[10], root=0)"),
                                    HasSubstr("rank 0 called")));
            if (odd != 0) {
              EXPECT_THAT(text, HasSubstr("rank " + std::to_string(odd) + " called broadcast"));
            }
            EXPECT_TRUE(std::all_of(output.begin(), output.end(),
                                    [](float value) { return value == 5.0F; }));
            sum(group, static_cast<size_t>(1 + odd * 100000));
          }
        },
        on(hosts));
  }
}

TEST(MultiHost, NamesASplitThatDiffersOnEveryRankAndGoesOn) {
  run_thread_ranks(
      4,
      [](Communicator& group) {
        std::vector<size_t> sends(4, 10);
        const std::vector<size_t> receives(4, 10);
        if (group.rank() == 3) sends[0] = 9;
        std::vector<float> input(40);
        std::vector<float> output(40);
        EXPECT_THAT(raised<MismatchError>([&] {
                      group.all_to_all_v(input.data(), sends.data(), output.data(), receives.data(),
                                         kFloat);
                    }),
                    HasSubstr("rank 3 sends 9 elements to rank 0, which expects 10"));
        sum(group, 1000);
      },
      on({0, 1, 0, 1}));
}

/// Blocks that a rank sends to itself are far larger than all others, and differ from rank to rank.
TEST(MultiHost, PassesSmallBlocksBesideLargeOnesForOneself) {
  run_thread_ranks(
      4,
      [](Communicator& group) {
        const auto own = static_cast<size_t>(group.rank());
        std::vector<size_t> counts(4, 3);
        counts[own] = 700000 * own;
        const auto value_of = [](size_t from, size_t to) {
          return static_cast<int64_t>(10 * from + to);
        };
        std::vector<int64_t> input;
        std::vector<int64_t> expected;
        for (size_t peer = 0; peer < 4; ++peer) {
          input.insert(input.end(), counts[peer], value_of(own, peer));
          expected.insert(expected.end(), counts[peer], value_of(peer, own));
        }
        std::vector<int64_t> output(input.size());
        group.all_to_all_v(input.data(), counts.data(), output.data(), counts.data(),
                           DataType::kInt64);
        EXPECT_EQ(output, expected);
        sum(group, 100);
      },
      on({0, 0, 1, 1}));
}

/// What is sent to a busy rank fills the connections; that it does not read is no silence.
TEST(MultiHost, WaitsForABusyRankLongerThanForASilentHost) {
  RankOptions options = on({0, 1});
  options.config.link_timeout = milliseconds(1000);
  run_process_ranks(
      2,
      [](Communicator& group) {
        std::vector<char> message(20 << 20, 'x');
        if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(3500));
        sum(group, 4 << 20);
        if (group.rank() == 1) {
          std::this_thread::sleep_for(milliseconds(3500));
          group.receive(message.data(), message.size(), 0, 1)->wait(milliseconds(0));
        } else {
          group.send(message.data(), message.size(), 1, 1)->wait(milliseconds(0));
        }
        group.barrier();
      },
      options);
}

TEST(MultiHost, NamesARankThatLeftWithoutAMessage) {
  run_thread_ranks(
      3,
      [](Communicator& group) {
        std::vector<char> message(8 << 20, 'x');
        if (group.rank() == 2) {  // another host's; it has sent all of this when it leaves
          group.send(message.data(), message.size(), 0, 1)->wait(milliseconds(0));
          return;
        }
        if (group.rank() == 1) return;
        std::this_thread::sleep_for(milliseconds(200));
        group.receive(message.data(), message.size(), 2, 1)->wait(milliseconds(0));
        EXPECT_THAT(raised<PeerFailure>(
                        [&] { group.receive(message.data(), 1, 1, 1)->wait(milliseconds(0)); }),
                    HasSubstr("rank 1"));
      },
      on({0, 1, 2}));
}

TEST(MultiHost, RefusesBadArgumentsBeforeAnythingIsSent) {
  run_thread_ranks(
      2,
      [](Communicator& group) {
        if (group.rank() == 0) {
          raised<InvalidArgument>([&] { group.broadcast(nullptr, 4, kFloat, 0); });
          std::vector<float> data(8);
          raised<InvalidArgument>([&] { group.broadcast(data.data(), 4, kFloat, 2); });
          raised<InvalidArgument>(
              [&] { group.all_reduce(data.data(), data.data() + 1, 4, kFloat, ReduceOp::kSum); });
        }
        sum(group, 10);
      },
      on({0, 1}));
}

TEST(MultiHost, NamesAKilledRankOnAllSurvivorsWithinASecond) {
  for (const Hosts& hosts : kHosts) {
    for (int victim = 0; victim < world_of(hosts); ++victim) {
      run_process_ranks(
          world_of(hosts),
          [&](Communicator& group) {
            sum(group, 100);
            if (group.rank() == victim) die();
            const auto begin = steady_clock::now();
            const std::string text = raised<PeerFailure>([&] { sum(group, 1 << 20); });
            EXPECT_LT(steady_clock::now() - begin, milliseconds(100) + detection_limit());
            const std::string name = "rank " + std::to_string(victim);
            EXPECT_THAT(text, HasSubstr(name));
            EXPECT_THAT(text, Not(ContainsRegex(name + " \\([^)]*\\) noticed")));
            EXPECT_EQ(raised<PeerFailure>([&] { group.barrier(); }), text);
          },
          on(hosts, {victim}));
    }
  }
}

/// Rank 3 is alone in no collective; the ranks that do not wait learn of the death at their next
/// call.
TEST(MultiHost, TellsRanksThatWaitForOthersThatDoNot) {
  run_process_ranks(
      4,
      [](Communicator& group) {
        sum(group, 10);
        if (group.rank() == 0) {
          std::this_thread::sleep_for(milliseconds(200));
          ::raise(SIGKILL);
        }
        if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(2000));
        const auto begin = steady_clock::now();
        EXPECT_THAT(raised<PeerFailure>([&] { sum(group, 1000); }), HasSubstr("rank 0"));
        EXPECT_LT(steady_clock::now() - begin, milliseconds(200) + detection_limit());
      },
      on({0, 0, 1, 1}, {0}));
}

TEST(MultiHost, NamesALateRankAtTheTimeout) {
  for (const Hosts& hosts : {Hosts{0, 0, 1, 1}, Hosts{0, 1, 0, 1}, Hosts{0, 1}}) {
    run_thread_ranks(
        world_of(hosts),
        [&](Communicator& group) {
          sum(group, 10);
          if (group.rank() == 1) {
            std::this_thread::sleep_for(milliseconds(1500));
            raised<AbortedError>([&] { sum(group, 10); });
            return;
          }
          const auto begin = steady_clock::now();
          const std::string text = raised<CommError>([&] { sum(group, 10, milliseconds(400)); });
          EXPECT_LT(steady_clock::now() - begin, milliseconds(400) + detection_limit());
          EXPECT_THAT(text, AllOf(HasSubstr("rank 1 (pid "), HasSubstr("timeout")));
        },
        on(hosts));
  }
}

TEST(MultiHost, NamesARankThatLeftEarly) {
  for (const Hosts& hosts : {Hosts{0, 1}, Hosts{0, 1, 0}, Hosts{0, 0, 1}}) {
    run_thread_ranks(
        world_of(hosts),
        [&](Communicator& group) {
          sum(group, 10);
          if (group.rank() == 1) return;  // its communicator is destroyed
          EXPECT_THAT(raised<PeerFailure>([&] { sum(group, 10); }), HasSubstr("rank 1"));
        },
        on(hosts));
  }
}

TEST(MultiHost, FinishesWithTheDataOfARankThatExitedAfterItsPart) {
  run_process_ranks(
      3,
      [](Communicator& group) {
        std::vector<float> data(200000, static_cast<float>(group.rank()));
        group.broadcast(data.data(), data.size(), kFloat, 0);
        EXPECT_EQ(data.back(), 0.0F);
        if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(300));
      },
      on({0, 1, 1}));
}

TEST(MultiHost, AbortWakesWaitersOnAllHosts) {
  run_thread_ranks(
      4,
      [](Communicator& group) {
        sum(group, 10);
        if (group.rank() == 2) {
          std::this_thread::sleep_for(milliseconds(300));
          group.abort("the user pressed a button");
          return;
        }
        const auto begin = steady_clock::now();
        EXPECT_THAT(raised<AbortedError>([&] { sum(group, 1000); }), HasSubstr("a button"));
        EXPECT_LT(steady_clock::now() - begin, milliseconds(300) + detection_limit());
      },
      on({0, 1, 0, 1}));
}

TEST(MultiHost, SurvivorsShrinkAndGoOn) {
  for (const Hosts& hosts : kHosts) {
    const TemporaryDirectory directory;
    run_process_ranks(
        world_of(hosts),
        [&](Communicator& group) {
          sum(group, 10);
          if (group.rank() == 1) die();
          raised<PeerFailure>([&] { sum(group, 10); });
          DirectoryStore store(directory.path());
          const auto rest = group.shrink({1}, store);
          EXPECT_EQ(rest->world_size(), group.world_size() - 1);
          sum(*rest, 100000);
        },
        on(hosts, {1}));
  }
}

TEST(MultiHost, AForkedChildGetsATypedErrorAndKeepsNoConnection) {
  run_process_ranks(
      4,
      [](Communicator& group) {
        sum(group, 10);
        if (group.rank() == 2) {
          const pid_t child = ::fork();
          if (child == 0) {
            const bool is_told = !raised<CommError>([&] { sum(group, 10); }).empty();
            std::this_thread::sleep_for(milliseconds(3000));  // lives on, as a worker does
            ::_exit(is_told ? 0 : 1);
          }
          die();
        }
        const auto begin = steady_clock::now();
        EXPECT_THAT(raised<PeerFailure>([&] { sum(group, 10); }), HasSubstr("rank 2"));
        EXPECT_LT(steady_clock::now() - begin, milliseconds(100) + detection_limit());
      },
      on({0, 1, 0, 1}, {2}));
}

TEST(MultiHost, HoldsWithManyMoreRanksThanCores) {
  Hosts hosts;
  for (int rank = 0; rank < 16; ++rank) hosts.push_back(rank % 4);
  run_process_ranks(
      16,
      [](Communicator& group) {
        for (int round = 0; round < (thin_matrix() ? 10 : 60); ++round) {
          sum(group, static_cast<size_t>(1 + round * 3001 % 50000));
          std::vector<int64_t> ranks(16);
          const int64_t own = group.rank();
          group.all_gather(&own, ranks.data(), 1, DataType::kInt64);
          std::vector<int64_t> expected(16);
          std::iota(expected.begin(), expected.end(), 0);
          ASSERT_EQ(ranks, expected);
        }
      },
      on(hosts));
}

}  // namespace
}  // namespace farandole::test
