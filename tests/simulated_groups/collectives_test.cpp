// SPDX-License-Identifier: Apache-2.0
// Each collective of ProcessGroupFarandole on simulated devices: values, streams and waits.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "farandole/error.h"
#include "simulated_groups/device_ranks.h"
#include "support/simulated_device/memory.h"

namespace farandole::sim {
namespace {

using test::device_of;
using test::DeviceGroups;
using test::error_of;
using test::full;
using test::holds;
using test::kEveryWay;
using test::kOnlyNccl;
using test::run_device_ranks;
using Tensors = std::vector<at::Tensor>;

constexpr int kRanks = 3;

template <class Options>
Options now(Options options = {}) {
  options.asyncOp = false;
  return options;
}

class DeviceCollectives : public DeviceGroups {};
INSTANTIATE_TEST_SUITE_P(, DeviceCollectives, kEveryWay, ::testing::PrintToStringParamName());
class EnqueuedCollectives : public DeviceGroups {};
INSTANTIATE_TEST_SUITE_P(, EnqueuedCollectives, kOnlyNccl, ::testing::PrintToStringParamName());

TEST_P(DeviceCollectives, ReduceTensorsOfAnyStride) {
  run_device_ranks(kRanks, [](ProcessGroupFarandole& group) {
    for (const bool asynchronous : {false, true}) {
      Tensors tensors{full(group, {6, 4}, group.getRank() + 1).t().narrow(0, 1, 2)};
      c10d::AllreduceOptions options;
      options.asyncOp = asynchronous;
      const auto work = group.allreduce(tensors, options);
      if (asynchronous) work->wait();
      EXPECT_TRUE(holds(tensors.front() * 2, 12));
    }
    Tensors tensors{full(group, {5}, group.getRank()), full(group, {2, 2}, 1)};
    group.allreduce_coalesced(tensors, now<c10d::AllreduceCoalescedOptions>());
    EXPECT_TRUE(holds(tensors[0], 3));
    EXPECT_TRUE(holds(tensors[1], 3));

    Tensors rooted{full(group, {4}, group.getRank() + 1)};
    c10d::ReduceOptions to_last = now<c10d::ReduceOptions>();
    to_last.rootRank = 2;
    group.reduce(rooted, to_last);
    EXPECT_TRUE(holds(rooted.front(), group.getRank() == 2 ? 6 : group.getRank() + 1));
  });
}

TEST_P(DeviceCollectives, MultiplyBeforeASum) {
  run_device_ranks(kRanks, [](ProcessGroupFarandole& group) {
    Tensors tensors{full(group, {4}, 1)};
    c10d::AllreduceOptions options = now<c10d::AllreduceOptions>();
    options.reduceOp.op_ = c10d::ReduceOp::PREMUL_SUM;  // torch 2.15 calls the maker otherwise
    options.reduceOp.supplement_ = c10::make_intrusive<c10d::NCCLPreMulSumSupplement>(0.5);
    group.allreduce(tensors, options);
    EXPECT_TRUE(holds(tensors.front(), 1.5));
    options.reduceOp = c10d::ReduceOp::AVG;
    group.allreduce(tensors, options);
    EXPECT_TRUE(holds(tensors.front(), 1.5));
  });
}

TEST_P(DeviceCollectives, GatherAndScatter) {
  run_device_ranks(kRanks, [](ProcessGroupFarandole& group) {
    const int rank = group.getRank();
    Tensors inputs{full(group, {4}, rank)};
    std::vector<Tensors> outputs{full(group, {4, kRanks}, -1).unbind(1)};
    group.allgather(outputs, inputs, now<c10d::AllgatherOptions>());
    for (int from = 0; from < kRanks; ++from) {
      EXPECT_TRUE(holds(outputs[0][static_cast<size_t>(from)], from));
    }
    Tensors part{full(group, {4}, -1)};
    group.reduce_scatter(part, outputs, now<c10d::ReduceScatterOptions>());
    EXPECT_TRUE(holds(part.front(), rank * kRanks));

    at::Tensor whole = full(group, {4 * kRanks}, 0);
    group._allgather_base(whole, inputs.front(), now<c10d::AllgatherOptions>());
    EXPECT_TRUE(holds(whole.sum(), 4 * 3));
    group._reduce_scatter_base(part.front(), whole, now<c10d::ReduceScatterOptions>());
    EXPECT_TRUE(holds(part.front(), rank * kRanks));

    std::vector<Tensors> gathered;
    if (rank == 1)
      gathered.push_back({full(group, {4}, 9), full(group, {4}, 9), full(group, {4}, 9)});
    c10d::GatherOptions to_1 = now<c10d::GatherOptions>();
    to_1.rootRank = 1;
    group.gather(gathered, inputs, to_1);
    c10d::ScatterOptions from_1 = now<c10d::ScatterOptions>();
    from_1.rootRank = 1;
    group.scatter(part, gathered, from_1);
    EXPECT_TRUE(holds(part.front(), rank));
  });
}

TEST_P(DeviceCollectives, BroadcastAndExchange) {
  run_device_ranks(kRanks, [](ProcessGroupFarandole& group) {
    const int rank = group.getRank();
    Tensors tensors{full(group, {4, 2}, rank).t()};
    c10d::BroadcastOptions from_2 = now<c10d::BroadcastOptions>();
    from_2.rootRank = 2;
    group.broadcast(tensors, from_2);
    EXPECT_TRUE(holds(tensors.front(), 2));

    at::Tensor input = full(group, {kRanks}, rank);
    at::Tensor output = full(group, {kRanks}, -1);
    std::vector<int64_t> equal;
    group.alltoall_base(output, input, equal, equal, now<c10d::AllToAllOptions>());
    EXPECT_TRUE(at::equal(output.cpu(), at::arange(kRanks, at::kFloat)));

    // Rank r gives p + 1 rows to each rank p.
    std::vector<int64_t> gives{1, 2, 3};
    std::vector<int64_t> gets(kRanks, rank + 1);
    input = full(group, {6, 2}, rank);
    output = full(group, {kRanks * (rank + 1), 2}, -1);
    group.alltoall_base(output, input, gets, gives, now<c10d::AllToAllOptions>());
    EXPECT_TRUE(holds(output.narrow(0, 2 * (rank + 1), rank + 1), 2));
  });
}

TEST_P(DeviceCollectives, MoveWhatCannotBeReduced) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    const at::Device device = device_of(group.getRank());
    Tensors shorts{at::full({3}, group.getRank(), at::TensorOptions(at::kShort).device(device))};
    c10d::BroadcastOptions from_1 = now<c10d::BroadcastOptions>();
    from_1.rootRank = 1;
    group.broadcast(shorts, from_1);
    EXPECT_TRUE(at::equal(shorts.front().cpu(), at::full({3}, 1, at::kShort)));
    if (is_staged()) {
      group.allreduce(shorts, now<c10d::AllreduceOptions>());
      EXPECT_TRUE(at::equal(shorts.front().cpu(), at::full({3}, 2, at::kShort)));
    } else {
      error_of<NotSupported>([&] { group.allreduce(shorts, now<c10d::AllreduceOptions>()); });
    }
    Tensors complex{at::full({3}, c10::complex<double>(1, group.getRank()),
                             at::TensorOptions(at::kComplexDouble).device(device))};
    group.allreduce(complex, now<c10d::AllreduceOptions>());
    EXPECT_EQ(complex.front()[0].item<c10::complex<double>>(), c10::complex<double>(2, 1));
  });
}

TEST_P(DeviceCollectives, WorkOnMemoryOfTheGroup) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    const at::TensorOptions options =
        at::TensorOptions(at::kFloat).device(device_of(group.getRank()));
    Tensors tensors{group.allocateTensor(1000, options)};
    EXPECT_EQ(tensors.front().device(), device_of(group.getRank()));
    tensors.front().fill_(group.getRank() + 1);
    group.allreduce(tensors, now<c10d::AllreduceOptions>());
    EXPECT_TRUE(holds(tensors.front(), 3));
  });
}

TEST_P(EnqueuedCollectives, NeverMakeTheHostWait) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    Tensors tensors{full(group, {100}, 1)};
    group.allreduce(tensors, now<c10d::AllreduceOptions>());  // connects
    synchronize_device(group.getRank());
    // Waits of all ranks are counted together, and those of a device barrier are among them.
    const auto host = group.communicator(c10::DeviceType::CPU);
    host->barrier();
    const uint64_t before = host_waits();
    host->barrier();
    for (int i = 0; i < 10; ++i) {
      c10d::AllreduceOptions options;
      options.asyncOp = i % 2 == 0;
      options.reduceOp = c10d::ReduceOp::AVG;
      group.allreduce(tensors, options)->wait();
    }
    host->barrier();
    EXPECT_EQ(host_waits(), before);
    host->barrier();
    EXPECT_TRUE(holds(tensors.front(), 2));
  });
}

TEST_P(DeviceCollectives, KeepTensorsUntilTheyHaveEnded) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    const size_t before = bytes_in_use(group.getRank());
    for (int i = 0; i < 5; ++i) {
      Tensors tensors{full(group, {1000}, i)};
      c10d::AllreduceOptions options;
      options.asyncOp = true;
      group.allreduce(tensors, options);  // nobody waits, or keeps anything
    }
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (bytes_in_use(group.getRank()) > before && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(bytes_in_use(group.getRank()), before);
  });
}

TEST_P(DeviceCollectives, GiveFuturesThatWaitOnTheStream) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    Tensors tensors{full(group, {1000}, 1)};
    c10d::AllreduceOptions options;
    options.asyncOp = true;
    const auto future = group.allreduce(tensors, options)->getFuture();
    EXPECT_TRUE(future->completed() || is_staged());
    const auto doubled = future->then(
        [](c10::ivalue::Future& done) {
          return c10::IValue(done.value().toTensorVector().front() * 2);
        },
        c10::TensorType::get());
    doubled->wait();
    EXPECT_TRUE(holds(doubled->value().toTensor(), 4));
  });
}

TEST_P(DeviceCollectives, NumberCollectivesOfAllDevicesInOneOrder) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    Tensors on_device{full(group, {2}, 1)};
    Tensors on_host{at::ones({2})};
    group.eagerConnectSingleDevice(device_of(group.getRank()));
    const uint64_t first = group.getSequenceNumberForGroup();
    group.allreduce(on_device, now<c10d::AllreduceOptions>());
    group.allreduce(on_host, now<c10d::AllreduceOptions>());
    const auto work = group.allreduce(on_device, now<c10d::AllreduceOptions>());
    EXPECT_EQ(work->getSequencenumber(), first + 3);
    EXPECT_TRUE(holds(on_host.front(), 2));
    EXPECT_TRUE(holds(on_device.front(), 4));
  });
}

TEST_P(DeviceCollectives, RefuseASecondDeviceAndMixedOnes) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    Tensors tensors{full(group, {2}, 1)};
    group.allreduce(tensors, now<c10d::AllreduceOptions>());
    Tensors elsewhere{at::ones({2}).to(device_of(group.getRank() + 2))};
    EXPECT_NE(error_of<InvalidArgument>([&] {
                group.allreduce(elsewhere, now<c10d::AllreduceOptions>());
              }).find("[second-device]"),
              std::string::npos);
    at::Tensor output = at::empty({4});
    EXPECT_NE(error_of<InvalidArgument>([&] {
                group._allgather_base(output, tensors.front(), now<c10d::AllgatherOptions>());
              }).find("[mixed-devices]"),
              std::string::npos);
    synchronize_device(group.getRank() + 2);
  });
}

}  // namespace
}  // namespace farandole::sim
