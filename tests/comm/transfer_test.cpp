// SPDX-License-Identifier: Apache-2.0
#include "farandole/comm/transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "farandole/comm/communicator.h"
#include "farandole/error.h"
#include "support/no_more_threads.h"
#include "support/raised.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

using comm::Communicator;
using comm::DataType;
using comm::Transfer;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

using Bytes = std::vector<unsigned char>;
using Transfers = std::vector<std::shared_ptr<Transfer>>;

Bytes pattern(size_t size, int seed) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<unsigned char>(i * 31 + static_cast<size_t>(seed) * 101);
  }
  return bytes;
}

void wait_all(const Transfers& transfers) {
  for (const auto& transfer : transfers) transfer->wait(milliseconds(0));
}

void send_now(Communicator& group, const Bytes& data, int to, uint64_t tag = 0) {
  group.send(data.data(), data.size(), to, tag)->wait(milliseconds(0));
}

Bytes receive_now(Communicator& group, size_t size, int from, uint64_t tag = 0) {
  Bytes data(size);
  group.receive(data.data(), size, from, tag)->wait(milliseconds(0));
  return data;
}

/// Sizes around the capacity of a channel.
const std::vector<size_t>& sizes() {
  static const std::vector<size_t> list{0, 1, 16, 1000, 131072, 131073, 1000003, 5000000};
  return list;
}

/// Ranks on one host, or every second one on another.
class TransferOn : public ::testing::TestWithParam<int> {
 protected:
  static RankOptions options_of(int world_size, RankOptions options) {
    if (GetParam() == 1) return options;
    for (int rank = 0; rank < world_size; ++rank) options.hosts.push_back(rank % GetParam());
    return options;
  }
  static void run_thread_ranks(int world_size, const RankBody& body,
                               const RankOptions& options = {}) {
    test::run_thread_ranks(world_size, body, options_of(world_size, options));
  }
  static void run_process_ranks(int world_size, const RankBody& body,
                                const RankOptions& options = {}) {
    test::run_process_ranks(world_size, body, options_of(world_size, options));
  }
};

INSTANTIATE_TEST_SUITE_P(Hosts, TransferOn, ::testing::Values(1, 2),
                         [](const auto& instance) { return std::to_string(instance.param); });

TEST_P(TransferOn, CarriesMessagesOfEverySizeBetweenThreadsAndProcesses) {
  const RankBody body = [](Communicator& group) {
    for (const size_t size : sizes()) {
      if (group.rank() == 0) {
        send_now(group, pattern(size, 1), 1);
        EXPECT_EQ(receive_now(group, size, 1), pattern(size, 2));
      } else {
        EXPECT_EQ(receive_now(group, size, 0), pattern(size, 1));
        send_now(group, pattern(size, 2), 0);
      }
    }
  };
  run_thread_ranks(2, body);
  run_process_ranks(2, body);
}

TEST_P(TransferOn, BothSidesMaySendFirst) {
  run_thread_ranks(2, [](Communicator& group) {
    const int peer = 1 - group.rank();
    for (const size_t size : sizes()) {
      const Bytes out = pattern(size, group.rank());
      Bytes in(size);
      auto send = group.send(out.data(), size, peer, 7);
      auto receive = group.receive(in.data(), size, peer, 7);
      send->wait(milliseconds(0));
      receive->wait(milliseconds(0));
      EXPECT_EQ(in, pattern(size, peer));
    }
  });
}

TEST_P(TransferOn, MatchesByTagAndKeepsOrderWithinOne) {
  run_thread_ranks(2, [](Communicator& group) {
    const size_t large = 400000;
    if (group.rank() == 0) {
      const Bytes first = pattern(large, 1);
      const Bytes second = pattern(10, 2);
      const Bytes third = pattern(large, 3);
      wait_all({group.send(first.data(), large, 1, 5), group.send(second.data(), 10, 1, 6),
                group.send(third.data(), large, 1, 5)});
    } else {
      EXPECT_EQ(receive_now(group, 10, 0, 6), pattern(10, 2));
      EXPECT_EQ(receive_now(group, large, 0, 5), pattern(large, 1));
      EXPECT_EQ(receive_now(group, large, 0, 5), pattern(large, 3));
    }
  });
}

TEST_P(TransferOn, ASendFinishesWhileItsRankComputesAndDoesNotWait) {
  run_process_ranks(2, [](Communicator& group) {
    const size_t size = 3000000;
    const Bytes data = pattern(size, 9);
    if (group.rank() == 0) {
      auto send = group.send(data.data(), size, 1, 0);
      group.barrier();  // rank 1 has received by then, without any help of a wait()
      EXPECT_TRUE(send->is_done());
    } else {
      EXPECT_EQ(receive_now(group, size, 0), data);
      group.barrier();
    }
  });
}

TEST_P(TransferOn, ReceivesFromAnySourceAndTellsWhich) {
  run_thread_ranks(4, [](Communicator& group) {
    if (group.rank() != 0) {
      const Bytes data{static_cast<unsigned char>(group.rank())};
      send_now(group, data, 0, 3);
      return group.barrier();
    }
    int seen = 0;
    for (int i = 1; i < group.world_size(); ++i) {
      Bytes data(1);
      auto receive = group.receive(data.data(), 1, Communicator::kAnySource, 3);
      receive->wait(milliseconds(0));
      EXPECT_EQ(receive->peer(), data[0]);
      seen += data[0];
    }
    EXPECT_EQ(seen, 1 + 2 + 3);
    group.barrier();
  });
}

TEST_P(TransferOn, ManyInFlightInRandomOrderAmongAllPairsAndToOneself) {
  run_thread_ranks(3, [](Communicator& group) {
    const int messages = thin_matrix() ? 20 : 100;
    const int world = group.world_size();
    const auto size_of_message = [](int i) { return static_cast<size_t>(i * i * 37 % 60000); };
    std::vector<Bytes> out;
    std::vector<Bytes> in;
    out.reserve(static_cast<size_t>(world * messages));
    in.reserve(static_cast<size_t>(world * messages));
    Transfers transfers;
    std::vector<int> order(static_cast<size_t>(messages));
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 random(static_cast<unsigned>(group.rank()));
    for (int peer = 0; peer < world; ++peer) {
      std::shuffle(order.begin(), order.end(), random);
      for (const int i : order) {
        out.push_back(pattern(size_of_message(i), i + group.rank()));
        transfers.push_back(
            group.send(out.back().data(), out.back().size(), peer, static_cast<uint64_t>(i)));
      }
    }
    for (int peer = 0; peer < world; ++peer) {
      for (int i = 0; i < messages; ++i) {
        in.emplace_back(size_of_message(i));
        transfers.push_back(
            group.receive(in.back().data(), in.back().size(), peer, static_cast<uint64_t>(i)));
      }
    }
    wait_all(transfers);
    for (int peer = 0; peer < world; ++peer) {
      for (int i = 0; i < messages; ++i) {
        ASSERT_EQ(in[static_cast<size_t>(peer * messages + i)],
                  pattern(size_of_message(i), i + peer));
      }
    }
  });
}

TEST_P(TransferOn, RunsBesideCollectivesOfAnotherThread) {
  run_thread_ranks(2, [](Communicator& group) {
    std::thread collectives([&] {
      std::vector<float> data(30000, 1.0F);
      for (int i = 0; i < 50; ++i) {
        group.all_reduce(data.data(), data.data(), data.size(), DataType::kFloat32,
                         comm::ReduceOp::kMax);
      }
    });
    for (int i = 0; i < 50; ++i) {
      if (group.rank() == 0) {
        send_now(group, pattern(20000, i), 1);
      } else {
        EXPECT_EQ(receive_now(group, 20000, 0), pattern(20000, i));
      }
    }
    collectives.join();
  });
}

TEST_P(TransferOn, NamesSizesThatDifferAndGoesOn) {
  run_thread_ranks(2, [](Communicator& group) {
    if (group.rank() == 0) {
      send_now(group, pattern(200000, 1), 1);
      send_now(group, pattern(5, 2), 1);
    } else {
      const std::string text = raised<MismatchError>([&] { receive_now(group, 100, 0); });
      EXPECT_THAT(text, AllOf(HasSubstr("200000 bytes from rank 0"), HasSubstr("100 bytes")));
      EXPECT_EQ(receive_now(group, 5, 0), pattern(5, 2));
    }
    group.barrier();
  });
}

TEST_P(TransferOn, NamesAPeerThatDiesOrNeverPosts) {
  run_process_ranks(2,
                    [](Communicator& group) {
                      if (group.rank() == 1) {
                        std::this_thread::sleep_for(milliseconds(100));
                        ::raise(SIGKILL);
                      }
                      EXPECT_THAT(
                          raised<PeerFailure>([&] { receive_now(group, 10, 1); }),
                          AllOf(HasSubstr("rank 1 (pid "),
                                AnyOf(HasSubstr("interrupted"), HasSubstr("noticed the end"))));
                    },
                    {Config(), {1}});
  run_thread_ranks(2, [](Communicator& group) {
    if (group.rank() == 0) {
      Bytes data(10);
      auto receive = group.receive(data.data(), 10, 1, 77);
      EXPECT_THAT(raised<TimeoutError>([&] { receive->wait(milliseconds(150)); }),
                  AllOf(HasSubstr("tag 77"), HasSubstr("rank 1"), HasSubstr("150 ms")));
    } else {
      std::this_thread::sleep_for(milliseconds(400));
    }
  });
}

TEST_P(TransferOn, AReceiveThatMeetsAHalfArrivedMessageGoesOnWithoutAWait) {
  run_process_ranks(2, [](Communicator& group) {
    const size_t size = 1000000;
    const Bytes data = pattern(size, 4);
    if (group.rank() == 0) {
      send_now(group, data, 1);
      group.barrier();
    } else {
      std::this_thread::sleep_for(milliseconds(100));  // as much as fits is on its way by now
      Bytes received(size);
      auto receive = group.receive(received.data(), size, 0, 0);
      group.barrier();
      receive->wait(milliseconds(0));
      EXPECT_EQ(received, data);
    }
  });
}

TEST_P(TransferOn, AReceiveFromAnySourceEndsWhenNobodyIsLeft) {
  run_process_ranks(
      2,
      [](Communicator& group) {
        if (group.rank() == 1) ::raise(SIGKILL);
        EXPECT_THAT(raised<PeerFailure>([&] { receive_now(group, 1, Communicator::kAnySource); }),
                    HasSubstr("rank 1 (pid "));
      },
      {Config(), {1}});
}

TEST_P(TransferOn, RefusesPeersThatDoNotExist) {
  run_thread_ranks(2, [](Communicator& group) {
    unsigned char byte = 0;
    raised<InvalidArgument>([&] { group.send(&byte, 1, 2, 0); });
    raised<InvalidArgument>([&] { group.receive(&byte, 1, -2, 0); });
  });
}

TEST(AllToAllV, PassesBlocksOfUnevenSizes) {
  for (const int world_size : {1, 2, 3, 4}) {
    run_thread_ranks(world_size, [](Communicator& group) {
      const int world = group.world_size();
      for (const int scale : {0, 1, 50, 40000}) {
        const auto block = [&](int from, int to) {
          return static_cast<size_t>((from * 3 + to) % 4 * scale);
        };
        std::vector<size_t> sends;
        std::vector<size_t> receives;
        std::vector<int> in;
        std::vector<int> expected;
        for (int peer = 0; peer < world; ++peer) {
          sends.push_back(block(group.rank(), peer));
          receives.push_back(block(peer, group.rank()));
          in.insert(in.end(), sends.back(), group.rank() * 10 + peer);
          expected.insert(expected.end(), receives.back(), peer * 10 + group.rank());
        }
        std::vector<int> out(expected.size());
        group.all_to_all_v(in.data(), sends.data(), out.data(), receives.data(), DataType::kInt32);
        ASSERT_EQ(out, expected);
      }
    });
  }
}

TEST(AllToAllV, NamesTheRanksWhoseSplitsDisagree) {
  run_thread_ranks(3, [](Communicator& group) {
    std::vector<size_t> sends(3, 1);
    std::vector<size_t> receives(3, 1);
    if (group.rank() == 2) receives[1] = 4;
    std::vector<int> in(3);
    std::vector<int> out(6);
    const std::string text = raised<MismatchError>([&] {
      group.all_to_all_v(in.data(), sends.data(), out.data(), receives.data(), DataType::kInt32);
    });
    EXPECT_THAT(text, HasSubstr("rank 1 sends 1 elements to rank 2, which expects 4"));
    group.barrier();
  });
}

TEST_P(TransferOn, NamesAPeerThatLeftWhileOtherTransfersGoOn) {
  run_thread_ranks(3, [](Communicator& group) {
    group.barrier();
    if (group.rank() == 2) return;
    const int peer = 1 - group.rank();
    const auto pass_until_over = [&] {
      Bytes data(3);
      try {
        while (true) {
          const Transfers both{group.send(data.data(), data.size(), peer, 0),
                               group.receive(data.data(), data.size(), peer, 0)};
          wait_all(both);
        }
      } catch (const CommError&) {
      }
    };
    if (group.rank() == 1) return pass_until_over();
    std::thread passing(pass_until_over);
    Bytes data(3);
    EXPECT_THAT(raised<PeerFailure>([&] {
                  group.receive(data.data(), data.size(), 2, 9)->wait(std::chrono::seconds(20));
                }),
                HasSubstr("rank 2"));
    passing.join();
  });
}

TEST_P(TransferOn, OutlivesItsGroupAndSaysHowItEnded) {
  Transfers done;
  Transfers cut_off;
  std::mutex mutex;
  const Bytes out = pattern(5000000, 1);  // more than a channel holds
  Bytes in(10);
  run_thread_ranks(2, [&](Communicator& group) {
    const int rank = group.rank();
    const Transfers finished{group.send(out.data(), 3, rank, 5),
                             group.receive(in.data() + 3 * rank, 3, rank, 5)};
    wait_all(finished);
    // Rank 1 waits for nothing of rank 0, so it does not keep what rank 0 sends.
    const Transfers begun{rank == 0 ? group.send(out.data(), out.size(), 1, 0)
                                    : group.receive(in.data() + 6, 4, rank, 77)};
    {
      const std::lock_guard<std::mutex> lock(mutex);
      done.insert(done.end(), finished.begin(), finished.end());
      cut_off.insert(cut_off.end(), begun.begin(), begun.end());
    }
    group.barrier();
  });
  for (const auto& transfer : done) {
    EXPECT_TRUE(transfer->is_done());
    transfer->wait(milliseconds(0));
  }
  for (const auto& transfer : cut_off) {
    EXPECT_TRUE(transfer->is_done());
    EXPECT_THAT(raised<CommError>([&] { transfer->wait(milliseconds(0)); }),
                AnyOf(HasSubstr("its group was destroyed first"), HasSubstr("was interrupted")));
    bool told = false;
    transfer->when_done([&] { told = true; });
    EXPECT_TRUE(told);
  }
}

TEST_P(TransferOn, IsAskedWhileItsGroupEnds) {
  const Bytes out = pattern(5000000, 1);  // more than a channel holds
  for (int round = 0; round < 20; ++round) {
    std::vector<std::thread> askers;
    run_thread_ranks(2, [&](Communicator& group) {
      if (group.rank() != 0) return group.barrier();
      for (int i = 0; i < 2; ++i) {
        const auto transfer = group.send(out.data(), out.size(), 1, 0);
        askers.emplace_back([transfer, i] {
          while (!transfer->is_done()) std::this_thread::yield();
          // The text is not read: ThreadSanitizer does not see that exception_ptr counts its
          // holders.
          if (i == 0) {
            EXPECT_THROW(transfer->wait(milliseconds(0)), CommError);
          }
          EXPECT_EQ(transfer->peer(), 1);
        });
      }
      group.barrier();
    });
    for (std::thread& each : askers) each.join();
  }
}

TEST_P(TransferOn, CannotBeginWhereItsThreadCannotStart) {
  run_process_ranks(2, [](Communicator& group) {
    const Bytes data = pattern(100, 1);
    if (group.rank() == 0) {
      const NoMoreThreads limit;
      EXPECT_THAT(raised<SystemError>([&] { group.send(data.data(), data.size(), 1, 0); }),
                  HasSubstr("starting a thread for"));
    }
    group.barrier();
    if (group.rank() == 0) send_now(group, data, 1);
    if (group.rank() == 1) {
      EXPECT_EQ(receive_now(group, 100, 0), data);
    }
  });
}

TEST_P(TransferOn, TellsWhenItIsDone) {
  run_thread_ranks(2, [](Communicator& group) {
    Bytes data(3);
    if (group.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(20));
      send_now(group, pattern(3, 1), 1);
      return;
    }
    const auto transfer = group.receive(data.data(), data.size(), 0, 0);
    std::promise<void> done;
    transfer->when_done([&] { done.set_value(); });
    EXPECT_EQ(done.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
    EXPECT_TRUE(transfer->is_done());
    EXPECT_EQ(data, pattern(3, 1));
    bool told = false;
    transfer->when_done([&] { told = true; });
    EXPECT_TRUE(told);
  });
}

TEST_P(TransferOn, RefusesToWaitForItself) {
  run_thread_ranks(2, [](comm::Communicator& group) {
    const int own = group.rank();
    int got = 0;
    const auto endless = group.receive(&got, sizeof(got), own, 3);
    EXPECT_THAT(raised<InvalidArgument>([&] { endless->wait(milliseconds(0)); }),
                ::testing::HasSubstr("from itself with tag 3"));
    // It is forgotten, and what has been sent before is received.
    const int sent = 7 + own;
    const auto send = group.send(&sent, sizeof(sent), own, 3);
    group.receive(&got, sizeof(got), own, 3)->wait(milliseconds(0));
    send->wait(milliseconds(0));
    EXPECT_EQ(got, sent);
  });
}

}  // namespace
}  // namespace farandole::test
