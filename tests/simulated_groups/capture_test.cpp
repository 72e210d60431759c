// SPDX-License-Identifier: Apache-2.0
// Collectives that are captured into a graph: what replays give, and what a capture must not meet.
#include "support/simulated_device/capture.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>

#include "farandole/error.h"
#include "simulated_groups/device_ranks.h"
#include "support/simulated_device/errors.h"
#include "support/simulated_device/graph.h"
#include "support/simulated_device/memory.h"

namespace farandole::sim {
namespace {

using std::chrono::milliseconds;
using test::device_of;
using test::error_of;
using test::full;
using test::holds;
using test::run_device_ranks;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

constexpr int kWorldSize = 3;

template <class Options>
Options called(bool asynchronous) {
  Options options;
  options.asyncOp = asynchronous;
  return options;
}

Stream& current(const ProcessGroupFarandole& group) {
  return current_stream(static_cast<c10::DeviceIndex>(group.getRank()));
}

/// Has a stream of its own, on which a capture begins, as current one.
class Capturing {
 public:
  /// Ranks that are threads capture at the same time, so others may do what captures forbid.
  explicit Capturing(const ProcessGroupFarandole& group,
                     CaptureMode mode = CaptureMode::kThreadLocal)
      : guard_(stream_for(group)), stream_(current(group)) {
    stream_.begin_capture(mode);
  }

  std::shared_ptr<Graph> end() { return stream_.end_capture(); }

 private:
  static c10::Stream stream_for(const ProcessGroupFarandole& group) {
    synchronize_device(group.getRank());
    const c10::impl::VirtualGuardImpl device(kSim);
    return device.getStreamFromGlobalPool(device_of(group.getRank()));
  }

  c10::StreamGuard guard_;
  Stream& stream_;
};

std::shared_ptr<Graph> captured(const ProcessGroupFarandole& group,
                                const std::function<void()>& body) {
  Capturing capture(group);
  body();
  return capture.end();
}

void all_reduce(ProcessGroupFarandole& group, const at::Tensor& tensor, bool asynchronous = false) {
  Tensors tensors{tensor};
  const auto work = group.allreduce(tensors, called<c10d::AllreduceOptions>(asynchronous));
  if (asynchronous) work->wait();
}

void barrier(ProcessGroupFarandole& group) { group.barrier(called<c10d::BarrierOptions>(false)); }

/// Ranks have a lane, and nothing is pending.
void have_lanes(ProcessGroupFarandole& group) {
  all_reduce(group, full(group, {2}, 1));
  synchronize_device(group.getRank());
  barrier(group);
}

class CapturedCollectives : public test::DeviceGroups {};
INSTANTIATE_TEST_SUITE_P(, CapturedCollectives, test::kOnlyNccl,
                         ::testing::PrintToStringParamName());
class CapturesOfStagedTensors : public test::DeviceGroups {};
INSTANTIATE_TEST_SUITE_P(, CapturesOfStagedTensors, test::kOnlyStaged,
                         ::testing::PrintToStringParamName());

TEST_P(CapturedCollectives, RunAtEachReplay) {
  run_device_ranks(kWorldSize, [](ProcessGroupFarandole& group) {
    have_lanes(group);
    const int rank = group.getRank();
    const at::Tensor own = full(group, {2}, 0);
    const at::Tensor sum = full(group, {2}, 0);
    at::Tensor whole = full(group, {2 * kWorldSize}, 0);
    at::Tensor exchanged = full(group, {2 * kWorldSize}, 0);
    at::Tensor part = full(group, {2}, 0);
    Tensors root{full(group, {2}, 0)};
    const auto graph = captured(group, [&] {
      sum.copy_(own);
      all_reduce(group, sum);
      at::Tensor doubled = own * 2;
      group._allgather_base(whole, doubled, called<c10d::AllgatherOptions>(false));
      std::vector<int64_t> equal;
      group.alltoall_base(exchanged, whole, equal, equal, called<c10d::AllToAllOptions>(false));
      group._reduce_scatter_base(part, exchanged, called<c10d::ReduceScatterOptions>(false));
      root.front().copy_(own);
      group.broadcast(root, called<c10d::BroadcastOptions>(false));
    });
    EXPECT_TRUE(holds(sum, 0));
    for (const int value : {1, 5, 7}) {
      own.fill_(value + rank);
      graph->replay(current(group));
      EXPECT_TRUE(holds(sum, 3 * value + 3));
      EXPECT_TRUE(holds(whole.narrow(0, 4, 2), 2 * (value + 2)));
      EXPECT_TRUE(holds(exchanged, 2 * (value + rank)));  // each rank gives its block of this rank
      EXPECT_TRUE(holds(part, 2 * (3 * value + 3)));
      EXPECT_TRUE(holds(root.front(), value));
      all_reduce(group, own);  // between replays, on the same communicator
      EXPECT_TRUE(holds(own, 3 * value + 3));
    }
  });
}

TEST_P(CapturedCollectives, MayBeAsynchronousCoalescedAndMessages) {
  run_device_ranks(kWorldSize, [](ProcessGroupFarandole& group) {
    have_lanes(group);
    const int rank = group.getRank();
    const at::Tensor own = full(group, {2}, 0);
    Tensors coalesced{full(group, {2}, 0), full(group, {3}, 0)};
    Tensors received{full(group, {2}, 0)};
    at::Tensor doubled;
    const auto graph = captured(group, [&] {
      for (const at::Tensor& each : coalesced) each.fill_(rank);
      const auto work =
          group.allreduce_coalesced(coalesced, called<c10d::AllreduceCoalescedOptions>(true));
      Tensors freed{own * 1};
      const auto dropped = group.allreduce(freed, called<c10d::AllreduceOptions>(true));
      freed.clear();  // the Work keeps it
      full(group, {2}, -1);
      Tensors sent{own + 1};
      group.startCoalescing();
      group.send(sent, (rank + 1) % kWorldSize, 0);
      group.recv(received, (rank + 2) % kWorldSize, 0);
      const auto messages = group.endCoalescing();
      dropped->wait();
      work->wait();
      messages->wait();
      const auto future = work->getFuture();
      future->wait();
      doubled = coalesced.front() * 2;
      EXPECT_TRUE(work->isCompleted());
      EXPECT_TRUE(work->wait(milliseconds(1)));  // on the host there is nothing to wait for
    });
    for (const int value : {1, 5}) {
      own.fill_(value + rank);
      graph->replay(current(group));
      EXPECT_TRUE(holds(coalesced[1], 3));
      EXPECT_TRUE(holds(doubled, 6));
      EXPECT_TRUE(holds(received.front(), value + (rank + 2) % kWorldSize + 1));
    }
  });
}

TEST_P(CapturedCollectives, MakeNoHostWaitAndRefuseABarrier) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    have_lanes(group);
    const auto host = group.communicator(c10::DeviceType::CPU);
    const at::Tensor tensor = full(group, {8}, 1);
    synchronize_device(group.getRank());
    Capturing capture(group);
    host->barrier();  // waits of all ranks are counted together
    const uint64_t before = host_waits();
    all_reduce(group, tensor);
    all_reduce(group, tensor, /*asynchronous=*/true);
    EXPECT_THAT(error_of<NotSupported>([&] { barrier(group); }), HasSubstr("[captured-barrier]"));
    host->barrier();
    EXPECT_EQ(host_waits(), before);
    host->barrier();
    capture.end()->replay(current(group));
    EXPECT_TRUE(holds(tensor, 4));
  });
}

/// The watchdog asks for the ends of what was pending before, which the capture allows to it alone,
/// and not for those of captured events, which nobody may ask for.
TEST_P(CapturedCollectives, AreLeftAloneByTheWatchdog) {
  run_device_ranks(1, [](ProcessGroupFarandole& group) {
    have_lanes(group);
    const at::Tensor tensor = full(group, {8}, 1);
    synchronize_device(0);
    Tensors pending{full(group, {8}, 1)};
    for (const CaptureMode mode : {CaptureMode::kGlobal, CaptureMode::kThreadLocal}) {
      c10::intrusive_ptr<c10d::Work> before;
      std::shared_ptr<Graph> graph;
      {
        Capturing capture(group, mode);
        std::thread([&] {
          before = group.allreduce(pending, called<c10d::AllreduceOptions>(true));
        }).join();
        Tensors tensors{tensor};
        const auto work = group.allreduce(tensors, called<c10d::AllreduceOptions>(true));
        std::this_thread::sleep_for(milliseconds(150));
        work->wait();
        graph = capture.end();
      }
      before->wait();
      graph->replay(current(group));
    }
    EXPECT_TRUE(holds(tensor, 1));
    EXPECT_TRUE(holds(pending.front(), 1));
    all_reduce(group, tensor);
  });
}

/// Its thread of the group waits for the device, which the capture allows to it alone.
TEST_P(CapturedCollectives, AreLeftAloneByABarrierOfAnotherThread) {
  run_device_ranks(1, [](ProcessGroupFarandole& group) {
    have_lanes(group);
    const at::Tensor tensor = full(group, {8}, 1);
    std::shared_ptr<Graph> graph;
    {
      Capturing capture(group, CaptureMode::kGlobal);
      std::thread([&] { group.barrier(called<c10d::BarrierOptions>(true))->wait(); }).join();
      all_reduce(group, tensor);
      std::thread([&] {  // now the group's stream is captured
        EXPECT_THAT(error_of<NotSupported>([&] { barrier(group); }),
                    HasSubstr("[captured-barrier]"));
      })
          .join();
      graph = capture.end();
    }
    graph->replay(current(group));
    EXPECT_TRUE(holds(tensor, 1));
  });
}

TEST_P(CapturedCollectives, TakeNoCallOfAStreamThatIsNotCaptured) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    have_lanes(group);
    const at::Tensor tensor = full(group, {8}, 1);
    const at::Tensor other = full(group, {8}, 1);
    captured(group, [&] {
      {
        const c10::StreamGuard before(c10::Stream(c10::Stream::DEFAULT, tensor.device()));
        all_reduce(group, other);  // the group's stream is not captured yet
      }
      all_reduce(group, tensor);
      const c10::StreamGuard outside(c10::Stream(c10::Stream::DEFAULT, tensor.device()));
      for (const bool asynchronous : {false, true}) {
        EXPECT_THAT(error_of<NotSupported>([&] { all_reduce(group, other, asynchronous); }),
                    HasSubstr("[captured-stream]"));
      }
    })->replay(current(group));
    EXPECT_TRUE(holds(tensor, 2));
    all_reduce(group, other);
    EXPECT_TRUE(holds(other, 4));
  });
}

TEST_P(CapturedCollectives, NeitherAllocateNorReleaseMemoryOfTheGroup) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    have_lanes(group);
    const int rank = group.getRank();
    const at::TensorOptions options = at::TensorOptions(at::kFloat).device(device_of(rank));
    at::Tensor kept = group.allocateTensor(1000, options);
    at::Tensor released = group.allocateTensor(1000, options);
    kept.fill_(1);
    released.fill_(1);
    constexpr size_t kEach = 1000 * sizeof(float);
    const auto graph = captured(group, [&] {
      EXPECT_THAT(error_of<NotSupported>([&] { group.allocateTensor(1000, options); }),
                  HasSubstr("[captured-memory]"));
      released.reset();
      all_reduce(group, kept);
    });
    EXPECT_GE(bytes_in_use(rank), 2 * kEach);
    graph->replay(current(group));
    EXPECT_TRUE(holds(kept, 2));
    kept.reset();
    EXPECT_LT(bytes_in_use(rank), kEach);
  });
}

TEST_P(CapturedCollectives, LeaveAUsableGroupWhenTheCaptureFails) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    have_lanes(group);
    const at::Tensor tensor = full(group, {8}, 1);
    const auto ends_without_graph = [&](const std::function<void()>& body, const char* why) {
      Capturing capture(group);
      body();
      EXPECT_THAT(test::raised<CaptureError>([&] { capture.end(); }), HasSubstr(why));
    };
    ends_without_graph(
        [&] {  // as an exception between a call and its wait() leaves it
          Tensors tensors{tensor};
          group.allreduce(tensors, called<c10d::AllreduceOptions>(true));
        },
        "cudaErrorStreamCaptureUnjoined");
    ends_without_graph(
        [&] {
          EXPECT_THROW(tensor.sum().item<float>(), CaptureError);
          EXPECT_THROW(all_reduce(group, tensor), CaptureError);
          EXPECT_THROW(all_reduce(group, tensor, true), CaptureError);
        },
        "cudaErrorStreamCaptureInvalidated");
    const auto before = group.communicator(c10::DeviceType::CPU);
    before->check_usable();
    EXPECT_EQ(group.getError(), c10d::ErrorType::SUCCESS);
    all_reduce(group, tensor);
    EXPECT_TRUE(holds(tensor, 2));
    captured(group, [&] { all_reduce(group, tensor); })->replay(current(group));
    EXPECT_TRUE(holds(tensor, 4));
  });
}

TEST_P(CapturedCollectives, MayBeTheFirstOfTheirGroup) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    const at::Tensor tensor = full(group, {8}, 1);
    const auto graph = captured(group, [&] { all_reduce(group, tensor); });
    graph->replay(current(group));
    EXPECT_TRUE(holds(tensor, 2));
  });
}

TEST_P(CapturesOfStagedTensors, AreRefused) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    have_lanes(group);
    const at::Tensor tensor = full(group, {8}, 1);
    const auto graph = captured(group, [&] {
      for (const bool asynchronous : {false, true}) {
        EXPECT_THAT(error_of<NotSupported>([&] { all_reduce(group, tensor, asynchronous); }),
                    HasSubstr("[captured-staged]"));
      }
      EXPECT_THAT(error_of<NotSupported>([&] { barrier(group); }), HasSubstr("[captured-barrier]"));
      tensor.mul_(3);
    });
    graph->replay(current(group));
    EXPECT_TRUE(holds(tensor, 3));
    all_reduce(group, tensor);
    EXPECT_TRUE(holds(tensor, 6));
  });
}

}  // namespace
}  // namespace farandole::sim
