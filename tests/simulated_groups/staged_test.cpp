// SPDX-License-Identifier: Apache-2.0
// What is special about tensors of a device that are staged through host memory.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <future>
#include <thread>

#include "farandole/error.h"
#include "log.h"
#include "simulated_groups/device_ranks.h"
#include "support/simulated_device/memory.h"

namespace farandole::sim {
namespace {

using test::device_of;
using test::error_of;
using test::full;
using test::holds;
using test::run_device_ranks;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

c10d::AllreduceOptions queued() {
  c10d::AllreduceOptions options;
  options.asyncOp = true;
  return options;
}

class StagedDevices : public test::DeviceGroups {};
INSTANTIATE_TEST_SUITE_P(, StagedDevices, test::kOnlyStaged, ::testing::PrintToStringParamName());

TEST_P(StagedDevices, ReduceEveryTypeAsTheCpuDoes) {
  run_device_ranks(4, [](ProcessGroupFarandole& group) {
    const int rank = group.getRank();
    for (const at::ScalarType type :
         {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat, at::kComplexDouble,
          at::kLong, at::kInt, at::kShort, at::kChar, at::kByte, at::kBool}) {
      for (const auto op : {c10d::ReduceOp::SUM, c10d::ReduceOp::MAX, c10d::ReduceOp::PRODUCT,
                            c10d::ReduceOp::BXOR, c10d::ReduceOp::AVG}) {
        const at::Tensor own = at::arange(37).add(rank).remainder(3).to(type);
        c10d::AllreduceOptions options = queued();
        options.reduceOp = op;
        Tensors on_host{own.clone()};
        Tensors on_device{own.to(device_of(rank))};
        try {
          group.allreduce(on_host, options)->wait();
        } catch (const Error&) {  // refused, before anything is sent
          EXPECT_ANY_THROW(group.allreduce(on_device, options)->wait()) << type << " " << op;
          continue;
        }
        group.allreduce(on_device, options)->wait();
        EXPECT_TRUE(at::equal(on_device.front().cpu(), on_host.front())) << type << " " << op;
      }
    }
  });
}

TEST_P(StagedDevices, TakeEmptyAndLargeTensors) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    for (const int64_t elements : {int64_t{0}, int64_t{1}, int64_t{3} << 20}) {
      Tensors tensors{full(group, {elements}, 1)};
      group.allreduce(tensors, queued())->wait();
      EXPECT_TRUE(holds(tensors.front(), 2));
      at::Tensor whole = full(group, {2, elements}, -1);
      Tensors own{full(group, {elements}, group.getRank())};
      c10d::AllgatherOptions options;
      options.asyncOp = true;
      group._allgather_base(whole, own.front(), options)->wait();
      EXPECT_TRUE(holds(whole[0], 0));
      EXPECT_TRUE(holds(whole[1], 1));
    }
  });
}

TEST_P(StagedDevices, KeepTheOrderOfManyCallsOnTheHostAndTheDevice) {
  run_device_ranks(3, [](ProcessGroupFarandole& group) {
    Tensors on_device{full(group, {1000}, 1)};
    Tensors on_host{at::ones({1000})};
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (int i = 0; i < 5; ++i) {
      works.push_back(group.allreduce(on_device, queued()));
      works.push_back(group.allreduce(on_host, queued()));
    }
    for (const auto& work : works) work->wait();
    EXPECT_TRUE(holds(on_device.front(), 243));
    EXPECT_TRUE(at::equal(on_host.front(), at::full({1000}, 243.0f)));
  });
}

TEST_P(StagedDevices, WorkOnStreamsOfTheCaller) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    const c10::impl::VirtualGuardImpl devices(kSim);
    const at::Device device = device_of(group.getRank());
    const c10::Stream side = devices.getStreamFromGlobalPool(device, /*isHighPriority=*/false);
    Tensors tensors;
    c10::intrusive_ptr<c10d::Work> work;
    {
      const c10::StreamGuard on_side(side);
      tensors.push_back(full(group, {5000}, 1).mul_(3));
      work = group.allreduce(tensors, queued());
    }
    work->wait();  // on the default stream
    const at::Tensor doubled = tensors.front() * 2;
    EXPECT_TRUE(holds(doubled, 12));
    record_stream(tensors.front().data_ptr(), stream(group.getRank(), 0));
  });
}

TEST_P(StagedDevices, AreWaitedForByTwoThreadsOfOneStream) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    for (int round = 0; round < 100; ++round) {
      Tensors tensors{full(group, {5000}, 1)};
      const auto work = group.allreduce(tensors, queued());
      std::atomic<int> ready{0};
      const auto use = [&] {
        set_current_device(group.getRank());
        for (++ready; ready < 2;) std::this_thread::yield();
        try {
          work->wait();
          EXPECT_TRUE(holds(tensors.front() * 2, 4));
        } catch (const std::exception& error) {
          ADD_FAILURE() << error.what();
        }
      };
      std::thread other(use);
      use();
      other.join();
    }
  });
}

TEST_P(StagedDevices, BarriersWaitForWhatCameBefore) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    Tensors tensors{full(group, {5000}, 1)};
    const auto work = group.allreduce(tensors, queued());
    c10d::BarrierOptions options;
    options.asyncOp = false;
    group.barrier(options);
    EXPECT_TRUE(work->isCompleted());
    EXPECT_TRUE(work->isSuccess());
    work->wait();
    EXPECT_TRUE(holds(tensors.front(), 2));
  });
}

TEST_P(StagedDevices, SendLargeMessagesInAnyOrder) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    const int other = 1 - group.getRank();
    constexpr int64_t kElements = int64_t{3} << 20;  // more than a channel holds
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    std::vector<Tensors> received;
    for (int tag = 0; tag < 2; ++tag) {
      Tensors own{full(group, {kElements}, group.getRank() + 10 * tag)};
      works.push_back(group.send(own, other, tag));
    }
    for (const int tag : {1, 0}) {
      received.push_back({full(group, {kElements}, -1)});
      works.push_back(group.recv(received.back(), other, tag));
    }
    for (const auto& work : works) work->wait();
    EXPECT_TRUE(holds(received[0].front(), other + 10));
    EXPECT_TRUE(holds(received[1].front(), other));
  });
}

TEST_P(StagedDevices, EndAMessageThatNobodySendsAtItsTimeout) {
  run_device_ranks(
      2,
      [](ProcessGroupFarandole& group) {
        Tensors tensors{full(group, {4}, 1)};
        group.allreduce(tensors, queued())->wait();
        synchronize_device(group.getRank());
        if (group.getRank() == 1) {
          while (group.getError() == c10d::ErrorType::SUCCESS) {
            try {
              group.communicator(c10::DeviceType::CPU)->check_usable();
            } catch (const CommError&) {
              return;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
          }
          return;
        }
        const auto work = group.recv(tensors, 1, 0);
        EXPECT_THAT(error_of<TimeoutError>([&] { work->wait(std::chrono::milliseconds(20)); }),
                    HasSubstr("[wait-timeout]"));
        EXPECT_THAT(error_of<TimeoutError>([&] { work->wait(); }), HasSubstr("[transfer-timeout]"));
        EXPECT_TRUE(work->isCompleted());
      },
      std::chrono::seconds(1));
}

TEST_P(StagedDevices, NameBothCallsWhereTheyDifferAndGoOn) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    Tensors tensors{full(group, {4 + group.getRank()}, 1)};
    const auto work = group.allreduce(tensors, queued());
    error_of<MismatchError>([&] { work->wait(); });
    EXPECT_TRUE(holds(tensors.front(), 1));
    Tensors equal{full(group, {4}, 1)};
    group.allreduce(equal, queued())->wait();
    EXPECT_TRUE(holds(equal.front(), 2));
  });
}

TEST_P(StagedDevices, TellAllRanksOfADeviceThatHasFailed) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    Tensors tensors{full(group, {4}, 1)};
    group.allreduce(tensors, queued())->wait();
    synchronize_device(group.getRank());
    group.communicator(c10::DeviceType::CPU)->barrier();
    if (group.getRank() == 1) {
      const auto work = group.allreduce(tensors, queued());
      EXPECT_THAT(error_of<AbortedError>([&] { work->wait(std::chrono::seconds(20)); }),
                  HasSubstr("its device has failed"));
      return;
    }
    fail_device(0, "an illegal access");
    EXPECT_ANY_THROW(group.allreduce(tensors, queued())->wait(std::chrono::seconds(20)));
    // The device says so to who calls; the group is told by who meets it next.
    group.abort();
  });
  reset_device(0);
}

/// Runs `in_callback` on rank 0 in a callback of a collective, and `meanwhile` on its own thread.
/// One of them ends the group there; rank 1 must find its own usable after that.
void end_with_callback(const std::function<void(ProcessGroupFarandole&)>& in_callback,
                       const std::function<void(ProcessGroupFarandole&)>& meanwhile) {
  std::promise<void> attached;
  std::promise<void> ended;
  std::promise<void> looked_at;
  run_device_ranks(2, [&](ProcessGroupFarandole& group) {
    Tensors tensors{full(group, {4}, 1)};
    group.allreduce(tensors, queued())->wait();  // connects
    if (group.getRank() == 1) {
      attached.get_future().wait();  // nothing ends before there is a callback
      group.allreduce(tensors, queued())->wait();
      ended.get_future().wait();
      EXPECT_NO_THROW(group.communicator(c10::DeviceType::CPU)->check_usable());
      EXPECT_EQ(group.getError(), c10d::ErrorType::SUCCESS);
      looked_at.set_value();
      return;
    }
    std::promise<void> returned;
    const auto work = group.allreduce(tensors, queued());
    work->getFuture()->addCallback([&](c10::ivalue::Future&) {
      in_callback(group);
      returned.set_value();
    });
    attached.set_value();
    work->wait();
    EXPECT_TRUE(holds(tensors.front(), 4));
    meanwhile(group);
    returned.get_future().wait();
    ended.set_value();
    looked_at.get_future().wait();
  });
}

TEST_P(StagedDevices, EndInPeaceDuringACallback) {
  std::promise<void> shut_down;
  end_with_callback([&](ProcessGroupFarandole&) { shut_down.get_future().wait(); },
                    [&](ProcessGroupFarandole& group) {
                      group.shutdown();
                      shut_down.set_value();
                    });
}

TEST_P(StagedDevices, EndInPeaceInACallback) {
  end_with_callback([](ProcessGroupFarandole& group) { group.shutdown(); },
                    [](ProcessGroupFarandole&) {});
}

TEST_P(StagedDevices, ExchangeMessagesInCallbacksOfMessages) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    const int other = 1 - group.getRank();
    Tensors received{full(group, {1000}, -1)};
    const auto work = group.recv(received, other, 0);
    std::promise<void> returned;
    Tensors last{full(group, {1000}, -1)};
    work->getFuture()->addCallback([&](c10::ivalue::Future& done) {
      Tensors reply{done.value().toTensorVector().front() * 2};
      const auto receiving = group.recv(last, other, 1);
      group.send(reply, other, 1)->wait();
      receiving->wait();
      EXPECT_TRUE(holds(last.front(), 2.0 * (group.getRank() + 1)));
      returned.set_value();
    });
    group.communicator(c10::DeviceType::CPU)->barrier();  // both have a callback
    Tensors own{full(group, {1000}, group.getRank() + 1)};
    group.send(own, other, 0)->wait();
    returned.get_future().wait();
    EXPECT_TRUE(holds(received.front(), other + 1));
  });
}

std::vector<std::string>& lines() {
  static std::vector<std::string> kept;
  return kept;
}

TEST_P(StagedDevices, AreChosenWhereNcclIsMissingAndSaySoOnce) {
  ::setenv("FARANDOLE_DEVICE_BACKEND", "auto", 1);
  ::setenv("FARANDOLE_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
  lines().clear();
  set_log_sink([](LogLevel level, const std::string& text) {
    if (level == LogLevel::kInfo && text.find("staged") != std::string::npos) {
      lines().push_back(text);
    }
    return true;
  });
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    for (int i = 0; i < 2; ++i) {
      Tensors tensors{full(group, {4}, 1)};
      group.allreduce(tensors, queued())->wait();
      EXPECT_TRUE(holds(tensors.front(), 2));
    }
    EXPECT_EQ(group.communicator(kSim), nullptr);
  });
  set_log_sink(nullptr);
  ::setenv("FARANDOLE_NCCL_LIBRARY", FARANDOLE_SIMULATED_NCCL, 1);
  EXPECT_THAT(lines(), ElementsAre(HasSubstr("staged through pinned host memory: rank 0 cannot use "
                                             "NCCL: ")));
}

TEST_P(StagedDevices, AreChosenWhereRanksShareADevice) {
  ::setenv("FARANDOLE_DEVICE_BACKEND", "auto", 1);
  for (const bool is_shared : {false, true}) {
    // All devices of the process have this address on the bus.
    if (is_shared) ::setenv("FARANDOLE_SIMULATED_BUS_ID", "0000:01:00.0", 1);
    run_device_ranks(2, [is_shared](ProcessGroupFarandole& group) {
      Tensors tensors{full(group, {4}, 1)};
      group.allreduce(tensors, queued())->wait();
      EXPECT_TRUE(holds(tensors.front(), 2));
      EXPECT_EQ(group.communicator(kSim) == nullptr, is_shared);
    });
  }
  ::unsetenv("FARANDOLE_SIMULATED_BUS_ID");
}

TEST_P(StagedDevices, AreNotChosenWhereNcclIsDemanded) {
  ::setenv("FARANDOLE_DEVICE_BACKEND", "nccl", 1);
  ::setenv("FARANDOLE_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    Tensors tensors{full(group, {4}, 1)};
    error_of<Error>([&] { group.allreduce(tensors, queued())->wait(); });
    synchronize_device(group.getRank());
  });
  ::setenv("FARANDOLE_NCCL_LIBRARY", FARANDOLE_SIMULATED_NCCL, 1);
}

}  // namespace
}  // namespace farandole::sim
