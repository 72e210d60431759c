// SPDX-License-Identifier: Apache-2.0
// Sends, receives and coalescing of ProcessGroupFarandole on simulated devices.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "farandole/error.h"
#include "simulated_groups/device_ranks.h"

namespace farandole::sim {
namespace {

using test::error_of;
using test::full;
using test::holds;
using test::run_device_ranks;
using Tensors = std::vector<at::Tensor>;

class DeviceTransfers : public test::DeviceGroups {};
INSTANTIATE_TEST_SUITE_P(, DeviceTransfers, test::kEveryWay, ::testing::PrintToStringParamName());

TEST_P(DeviceTransfers, ArriveInTheOrderOfTheirCalls) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    for (int i = 0; i < 3; ++i) {
      if (group.getRank() == 0) {
        Tensors own{full(group, {50, 40}, i).t()};
        group.send(own, 1, 0)->wait();
      } else {
        Tensors received{full(group, {50, 40}, -1).t()};
        const auto work = group.recv(received, 0, 0);
        work->wait();
        EXPECT_EQ(work->sourceRank(), 0);
        EXPECT_TRUE(holds(received.front(), i));
      }
    }
    synchronize_device(group.getRank());
  });
}

TEST_P(DeviceTransfers, OfOneCoalescingNeedNoOrder) {
  run_device_ranks(3, [](ProcessGroupFarandole& group) {
    EXPECT_TRUE(group.supportsCoalescing());
    const int size = group.getSize();
    const int after = (group.getRank() + 1) % size;
    const int before = (group.getRank() + size - 1) % size;
    const uint64_t first = group.getSequenceNumberForGroup();
    Tensors own{full(group, {30000}, group.getRank())};
    Tensors received{full(group, {2, 30000}, -1).t().narrow(1, 0, 1)};
    group.startCoalescing();
    group.send(own, after, 3);
    group.recv(received, before, 3);
    const auto work = group.endCoalescing();
    work->wait();
    EXPECT_TRUE(holds(received.front() * 2, 2 * before));
    EXPECT_EQ(group.getSequenceNumberForGroup(), first + 1);  // connecting
  });
}

TEST_P(DeviceTransfers, AndCollectivesOfOneCoalescingAreEndedByItsWork) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    const int other = 1 - group.getRank();
    Tensors summed{full(group, {10}, 1)};
    Tensors on_host{at::ones({3})};
    Tensors own{full(group, {10}, group.getRank())};
    Tensors received{full(group, {10}, -1)};
    Tensors own_on_host{at::full({4}, group.getRank())};
    Tensors received_on_host{at::full({4}, -1)};
    c10d::AllreduceOptions options;
    options.asyncOp = true;
    group.startCoalescing();
    group.allreduce(summed, options);
    group.allreduce(on_host, options);
    group.send(own, other, 0);
    group.recv(received, other, 0);
    group.send(own_on_host, other, 0);
    group.recv(received_on_host, other, 0);
    const auto work = group.endCoalescing();
    const auto future = work->getFuture();
    EXPECT_EQ(future, work->getFuture());
    future->wait();
    EXPECT_EQ(future->value().toTensorVector().size(), 6U);
    EXPECT_TRUE(holds(summed.front() + received.front(), 2 + other));
    work->wait();
    EXPECT_TRUE(holds(summed.front(), 2));
    EXPECT_TRUE(at::equal(on_host.front(), at::full({3}, 2.0f)));
    EXPECT_TRUE(holds(received.front(), other));
    EXPECT_TRUE(at::equal(received_on_host.front(), at::full({4}, other)));
  });
}

TEST_P(DeviceTransfers, RefuseWhatCannotBe) {
  run_device_ranks(2, [](ProcessGroupFarandole& group) {
    Tensors tensors{full(group, {2}, 0)};
    error_of<NotSupported>([&] { group.recvAnysource(tensors, 0); });
    error_of<InvalidArgument>([&] { group.endCoalescing(); });
    group.startCoalescing();
    group.startCoalescing();  // as after an error in a batch, which left it without an end
    EXPECT_TRUE(group.endCoalescing()->isCompleted());
    synchronize_device(group.getRank());
  });
}

}  // namespace
}  // namespace farandole::sim
