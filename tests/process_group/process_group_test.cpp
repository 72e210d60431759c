// SPDX-License-Identifier: Apache-2.0
#include "farandole/process_group/process_group.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "farandole/error.h"
#include "farandole/process_group/work.h"
#include "process_group/group_ranks.h"
#include "process_group/live_groups.h"
#include "support/no_more_threads.h"

namespace farandole {
namespace {

using std::chrono::milliseconds;
using test::error_of;
using test::run_group_ranks;
using Tensors = std::vector<at::Tensor>;

template <class Options>
Options now(Options options = {}) {
  options.asyncOp = false;
  return options;
}

at::Tensor full(at::IntArrayRef sizes, double value) { return at::full(sizes, value, at::kFloat); }

class ProcessGroupTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ProcessGroupTest, testing::Values(1, 2, 3, 4));

TEST_P(ProcessGroupTest, AllReducesInlineAndQueuedAlike) {
  run_group_ranks(GetParam(), [&](ProcessGroupFarandole& group) {
    const double total = GetParam() * (GetParam() + 1) / 2.0;
    for (const bool asynchronous : {false, true}) {
      Tensors tensors{full({5, 3}, group.getRank() + 1)};
      c10d::AllreduceOptions options;
      options.asyncOp = asynchronous;
      const auto work = group.allreduce(tensors, options);
      EXPECT_TRUE(asynchronous || work->isCompleted());
      work->wait();
      EXPECT_TRUE(at::equal(tensors.front(), full({5, 3}, total)));
    }
    EXPECT_EQ(group.getSequenceNumberForGroup(), 2u);
  });
}

TEST_P(ProcessGroupTest, GathersAndScattersListsOfAnyStride) {
  run_group_ranks(GetParam(), [&](ProcessGroupFarandole& group) {
    const int64_t size = GetParam();
    const at::Tensor columns = at::zeros({4, size});
    std::vector<Tensors> outputs{columns.unbind(1)};
    Tensors inputs{full({4}, group.getRank())};
    group.allgather(outputs, inputs, now<c10d::AllgatherOptions>())->wait();
    EXPECT_TRUE(at::equal(columns, at::arange(size, at::kFloat).expand({4, size})));

    Tensors part{at::zeros({4})};
    group.reduce_scatter(part, outputs, now<c10d::ReduceScatterOptions>())->wait();
    EXPECT_TRUE(at::equal(part.front(), full({4}, group.getRank() * GetParam())));
  });
}

TEST_P(ProcessGroupTest, MovesWhatItCannotReduceAsBytes) {
  run_group_ranks(GetParam(), [&](ProcessGroupFarandole& group) {
    Tensors tensors{at::full({3}, c10::complex<double>(group.getRank(), 1.0), at::kComplexDouble)};
    c10d::BroadcastOptions options;
    options.rootRank = GetParam() - 1;
    group.broadcast(tensors, options)->wait();
    EXPECT_TRUE(at::equal(tensors.front(), at::full({3}, c10::complex<double>(GetParam() - 1, 1.0),
                                                    at::kComplexDouble)));
    group.allreduce(tensors, now<c10d::AllreduceOptions>());
    EXPECT_EQ(tensors.front()[0].item<c10::complex<double>>(),
              c10::complex<double>(GetParam() * (GetParam() - 1), GetParam()));
    c10d::AllreduceOptions largest;
    largest.reduceOp = c10d::ReduceOp::MAX;
    error_of<NotSupported>([&] { group.allreduce(tensors, largest); });
  });
}

TEST_P(ProcessGroupTest, SumsSparseTensors) {
  run_group_ranks(GetParam(), [&](ProcessGroupFarandole& group) {
    const at::Tensor own = at::diag(at::arange(4, at::kFloat) * (group.getRank() + 1));
    Tensors tensors{own.to_sparse()};
    group.allreduce(tensors, now<c10d::AllreduceOptions>());
    const int total = GetParam() * (GetParam() + 1) / 2;
    EXPECT_TRUE(at::equal(tensors.front().to_dense(), at::diag(at::arange(4, at::kFloat) * total)));
  });
}

TEST_P(ProcessGroupTest, SendsToItsNeighbourWhileItReceives) {
  run_group_ranks(GetParam(), [&](ProcessGroupFarandole& group) {
    const int size = GetParam();
    const int after = (group.getRank() + 1) % size;
    const int before = (group.getRank() + size - 1) % size;
    Tensors own{full({50000}, group.getRank())};
    Tensors output{full({2, 50000}, -1).t().narrow(1, 0, 1)};
    const auto sent = group.send(own, after, 3);
    const auto received = group.recvAnysource(output, 3);
    EXPECT_TRUE(received->wait());
    EXPECT_TRUE(sent->wait());
    EXPECT_EQ(received->sourceRank(), before);
    EXPECT_TRUE(at::equal(output.front(), full({50000, 1}, before)));
    EXPECT_EQ(group.getSequenceNumberForGroup(), 0u);
  });
}

TEST(ProcessGroup, FulfilsTheFutureOfAReceiveThatNobodyWaitsFor) {
  run_group_ranks(2, [](ProcessGroupFarandole& group) {
    Tensors tensors{full({3}, group.getRank())};
    if (group.getRank() == 0) {
      std::this_thread::sleep_for(milliseconds(50));
      group.send(tensors, 1, 0)->wait();
      return;
    }
    const auto work = group.recv(tensors, 0, 0);
    work->getFuture()->wait();
    EXPECT_TRUE(work->isSuccess());
    EXPECT_TRUE(at::equal(tensors.front(), full({3}, 0)));
  });
}

TEST(ProcessGroup, FulfilsAFutureThoughItsThreadCouldNotStartAtFirst) {
  run_group_ranks(2, [](ProcessGroupFarandole& group) {
    Tensors tensors{full({3}, group.getRank())};
    c10d::BarrierOptions options;
    options.asyncOp = false;
    if (group.getRank() == 0) {
      group.barrier(options);
      group.send(tensors, 1, 0)->wait();
      return;
    }
    const auto work = group.recv(tensors, 0, 0);
    {
      const test::NoMoreThreads limit;
      error_of<SystemError>([&] { work->getFuture(); });
      error_of<SystemError>([&] { work->wait(milliseconds(1)); });
    }
    group.barrier(options);
    work->getFuture()->wait();
    EXPECT_TRUE(at::equal(tensors.front(), full({3}, 0)));
  });
}

TEST(ProcessGroup, EndsOnAllRanksIfOneCannotStartItsThread) {
  std::promise<void> failed;
  run_group_ranks(2, [&](ProcessGroupFarandole& group) {
    Tensors tensors{full({3}, 1)};
    if (group.getRank() == 0) {
      {
        const test::NoMoreThreads limit;
        error_of<SystemError>([&] { group.allreduce(tensors, {}); });
      }
      EXPECT_EQ(group.getError(), c10d::ErrorType::COMM_ERROR);
      // Rank 1 would take it for its first one.
      error_of<AbortedError>([&] { group.allreduce(tensors, now<c10d::AllreduceOptions>()); });
      return failed.set_value();
    }
    const std::string text =
        error_of<AbortedError>([&] { group.allreduce(tensors, now<c10d::AllreduceOptions>()); });
    EXPECT_NE(text.find("rank 0 could not start a collective"), std::string::npos) << text;
    failed.get_future().wait();
  });
}

TEST(ProcessGroup, FailsATransferThatIsPendingAtShutdown) {
  run_group_ranks(2, [](ProcessGroupFarandole& group) {
    Tensors tensors{full({3}, 0)};
    const auto work = group.recv(tensors, 1 - group.getRank(), 0);
    const auto future = work->getFuture();
    group.barrier(now<c10d::BarrierOptions>());  // both have begun before one ends the group
    group.shutdown();
    EXPECT_TRUE(work->isCompleted());
    EXPECT_TRUE(future->hasError());
    error_of<CommError>([&] { work->wait(); });
    error_of<AbortedError>([&] { group.send(tensors, 0, 0); });
  });
}

TEST(ProcessGroup, GoesOnWithoutARankAfterItsDeath) {
  run_group_ranks(4, [](ProcessGroupFarandole& group) {
    if (group.getRank() == 2) return;  // its group is destroyed
    error_of<CommError>([&] { group.barrier(now<c10d::BarrierOptions>()); });
    const auto shrunk = group.shrink({2});
    EXPECT_EQ(shrunk->getSize(), 3);
    EXPECT_EQ(shrunk->getRank(), group.getRank() == 3 ? 2 : group.getRank());
    Tensors tensors{full({3}, 1)};
    shrunk->allreduce(tensors, now<c10d::AllreduceOptions>());
    EXPECT_EQ(tensors.front()[0].item<float>(), 3.0f);
    error_of<InvalidArgument>([&] { group.shrink({group.getRank()}); });
  });
}

TEST(ProcessGroup, QueuesASynchronousCallBehindAsynchronousOnes) {
  run_group_ranks(2, [](ProcessGroupFarandole& group) {
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    std::vector<Tensors> tensors;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back({full({1000}, i)});
      works.push_back(group.allreduce(tensors.back(), {}));
    }
    Tensors last{full({1}, 1)};
    group.allreduce(last, now<c10d::AllreduceOptions>());
    for (size_t i = 0; i < works.size(); ++i) {
      EXPECT_TRUE(works[i]->isCompleted());
      EXPECT_TRUE(at::equal(tensors[i].front(), full({1000}, 2.0 * static_cast<double>(i))));
    }
    EXPECT_EQ(last.front().item<float>(), 2.0f);
  });
}

TEST(ProcessGroup, OutlivesACallbackThatThrows) {
  run_group_ranks(2, [](ProcessGroupFarandole& group) {
    Tensors tensors{full({1}, 1)};
    const auto work = group.allreduce(tensors, {});
    try {
      work->getFuture()->addCallback(
          [](c10::ivalue::Future&) { throw std::runtime_error("oops"); });
    } catch (const std::runtime_error&) {  // it was done already: the callback ran right here
    }
    group.barrier(now<c10d::BarrierOptions>());
    EXPECT_EQ(tensors.front().item<float>(), 2.0f);
  });
}

TEST(ProcessGroup, LetsACallbackMakeAGroupWhileAllAreShutDown) {
  std::promise<void> is_added;
  std::promise<void> begins;
  std::atomic<bool> is_done{false};
  run_group_ranks(2, [&](ProcessGroupFarandole& group) {
    Tensors tensors{full({1}, 1)};
    if (group.getRank() == 1) {
      is_added.get_future().wait();  // now the callback is added to what is not done yet
      group.allreduce(tensors, {})->wait();
      return;
    }
    const auto work = group.allreduce(tensors, {});
    work->getFuture()->addCallback([&](c10::ivalue::Future&) {
      begins.get_future().wait();
      std::this_thread::sleep_for(milliseconds(100));  // now it is waited for
      const auto made = c10::make_intrusive<ProcessGroupFarandole>(
          c10::make_intrusive<c10d::HashStore>(), 0, 1,
          c10::make_intrusive<ProcessGroupFarandole::Options>(std::chrono::seconds(10)));
      is_done = made->getSize() == 1;
    });
    is_added.set_value();
    work->wait();
    begins.set_value();
    shut_down_all_groups();
    EXPECT_TRUE(is_done);
  });
}

TEST(ProcessGroup, TellsMisuseBeforeAnythingIsSent) {
  run_group_ranks(2, [](ProcessGroupFarandole& group) {
    Tensors two{full({1}, 1), full({1}, 1)};
    EXPECT_NE(error_of<InvalidArgument>([&] {
                group.allreduce(two, {});
              }).find("all_reduce in group 'default' on rank"),
              std::string::npos);
    Tensors expanded{full({1}, 1).expand({3})};
    error_of<InvalidArgument>([&] { group.allreduce(expanded, {}); });
    at::Tensor output = full({3}, 0);
    at::Tensor input = full({2}, 0);
    error_of<InvalidArgument>([&] { group._allgather_base(output, input, {}); });
    error_of<InvalidArgument>([&] { group.send(two, 1, 0); });
    error_of<InvalidArgument>([&] { group.recvAnysource(two, 0); });
    Tensors one{full({1}, 1)};
    error_of<InvalidArgument>([&] { group.recv(one, 2, 0); });
    error_of<InvalidArgument>([&] { group.setTimeout(milliseconds(0)); });
    EXPECT_EQ(group.getSequenceNumberForGroup(), 0u);
    EXPECT_EQ(group.getError(), c10d::ErrorType::SUCCESS);
    group.monitoredBarrier({}, false);
  });
}

TEST(ProcessGroup, NamesALateRankAtTheTimeoutAndRemembersTheError) {
  run_group_ranks(
      2,
      [](ProcessGroupFarandole& group) {
        if (group.getRank() == 1) {
          std::this_thread::sleep_for(milliseconds(1200));
          return;
        }
        const std::string text =
            error_of<TimeoutError>([&] { group.barrier(c10d::BarrierOptions())->wait(); });
        EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
        EXPECT_EQ(group.getError(), c10d::ErrorType::TIMEOUT);
      },
      milliseconds(300));
}

TEST(ProcessGroup, AbortEndsWhatWaitsOnEveryRank) {
  run_group_ranks(3, [](ProcessGroupFarandole& group) {
    group.barrier(now<c10d::BarrierOptions>());
    if (group.getRank() == 0) {
      std::this_thread::sleep_for(milliseconds(100));
      group.abort();
    }
    error_of<AbortedError>([&] { group.barrier(c10d::BarrierOptions())->wait(); });
  });
}

TEST(ProcessGroup, ShutdownEndsWhatIsPendingAndRefusesWhatComes) {
  run_group_ranks(2, [](ProcessGroupFarandole& group) {
    if (group.getRank() == 1) {
      error_of<CommError>([&] { group.barrier(now<c10d::BarrierOptions>()); });
      return;
    }
    Tensors tensors{full({1}, 1)};
    // Nobody else calls it, so it cannot end by itself.
    const auto work = group.allreduce_coalesced(tensors, {});
    group.shutdown();
    EXPECT_TRUE(work->isCompleted());
    EXPECT_FALSE(work->isSuccess());
    error_of<AbortedError>([&] { group.barrier({}); });
    EXPECT_EQ(group.communicator(c10::DeviceType::CPU), nullptr);
    group.shutdown();  // harmless
  });
}

TEST(ProcessGroup, DestructionWithPendingWorkDoesNotHang) {
  c10::intrusive_ptr<c10d::Work> left;
  run_group_ranks(2, [&](ProcessGroupFarandole& group) {
    if (group.getRank() == 0) left = group.barrier(c10d::BarrierOptions());
  });
  error_of<CommError>([&] { left->wait(); });
}

TEST(ProcessGroup, RefusesCollectivesInAForkedChild) {
  run_group_ranks(1, [](ProcessGroupFarandole& group) {
    group.barrier(c10d::BarrierOptions())->wait();  // the executor exists
    const pid_t child = ::fork();
    if (child == 0) {
      int code = 1;
      try {
        group.barrier(c10d::BarrierOptions());
      } catch (const CommError&) {
        code = 0;
      }
      ::_exit(code);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 0);
    group.barrier(now<c10d::BarrierOptions>());
  });
}

TEST(ProcessGroup, LeavesNoKeyInItsStore) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  for (int round = 0; round < 3; ++round) {  // a program may make any number of groups
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([&, rank] {
        ProcessGroupFarandole group(store, rank, 3);
        Tensors tensors{full({2}, rank)};
        group.allreduce(tensors, now<c10d::AllreduceOptions>());
        EXPECT_EQ(tensors.front().sum().item<float>(), 6.0f);
        if (rank == 2) return;
        const auto shrunk = group.shrink({2});
        shrunk->allreduce(tensors, now<c10d::AllreduceOptions>());
        EXPECT_EQ(tensors.front().sum().item<float>(), 12.0f);
      });
    }
    for (auto& rank : ranks) rank.join();
    EXPECT_EQ(store->getNumKeys(), 0);
  }
}

}  // namespace
}  // namespace farandole
