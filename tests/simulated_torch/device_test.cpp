// SPDX-License-Identifier: Apache-2.0
// Tensors, streams, events and memory of torch on simulated devices.
#include "support/simulated_device/device.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "support/raised.h"
#include "support/simulated_device/errors.h"
#include "support/simulated_device/memory.h"
#include "support/simulated_device/no_races.h"
#include "support/simulated_device/torch/boxed_kernel.h"
#include "support/simulated_device/torch/device_guard.h"
#include "support/simulated_device/torch/generator.h"

namespace farandole::sim {
namespace {

using at::Tensor;
using test::raised;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const c10::Device kFirst(kSim, 0);
const c10::Device kSecond(kSim, 1);

class TorchDevice : public NoRaces {
 protected:
  static Tensor values() { return at::arange(6, at::kFloat).view({2, 3}); }
  static Tensor on(c10::Device device) { return values().to(device); }

  c10::impl::VirtualGuardImpl guard_{kSim};
  c10::Stream main_ = guard_.getDefaultStream(kFirst);
  c10::Stream side_ = guard_.getStreamFromGlobalPool(kFirst);
};
INSTANTIATE_TEST_SUITE_P(, TorchDevice, kEverySchedule, ::testing::PrintToStringParamName());

TEST_P(TorchDevice, IsNamedAndCounted) {
  EXPECT_EQ(c10::Device("sim:1"), kSecond);
  EXPECT_EQ(guard_.deviceCount(), kDeviceCount);
  EXPECT_EQ(at::empty({2}, c10::Device("sim")).device(), kFirst);
  const c10::DeviceGuard guard(kSecond);
  EXPECT_EQ(at::empty({2}, c10::Device(kSim)).device(), kSecond);
  EXPECT_THAT(raised<c10::Error>([] { at::empty({2}, c10::Device("sim:9")); }),
              HasSubstr("there is no sim:9"));
}

TEST_P(TorchDevice, ComputesWithoutWaiting) {
  const Tensor a = on(kFirst);
  const Tensor b = at::ones({3, 2}, kFirst);
  const uint64_t waits = host_waits();
  const Tensor product = a.mm(b).add_(1).t().contiguous();
  EXPECT_EQ(host_waits(), waits);
  EXPECT_TRUE(at::equal(product.cpu(), (values().mm(at::ones({3, 2})) + 1).t()));
  EXPECT_THAT(take_waiting_operators(), IsEmpty());
}

TEST_P(TorchDevice, WaitsForShapesThatDependOnData) {
  const Tensor found = on(kFirst).gt(3).nonzero();
  EXPECT_TRUE(at::equal(found.cpu(), values().gt(3).nonzero()));
  EXPECT_THAT(take_waiting_operators(), ElementsAre("nonzero: its outputs depend on data"));
}

TEST_P(TorchDevice, WaitsForValues) {
  const Tensor tensor = on(kFirst);
  EXPECT_TRUE(tensor.is_set_to(tensor.view({2, 3})));
  EXPECT_FALSE(tensor.is_set_to(tensor.t()));
  EXPECT_THAT(take_waiting_operators(), Each("is_set_to: it returns a value to the host"));
}

TEST_P(TorchDevice, WritesOutputsThatAreGivenAndResizesThem) {
  Tensor out = at::empty({0}, kFirst);
  at::add_out(out, on(kFirst), on(kFirst));
  EXPECT_TRUE(at::equal(out.cpu(), values() * 2));
  out.resize_({3, 3});
  EXPECT_TRUE(at::equal(out.view(-1).slice(0, 0, 6).cpu(), values().view(-1) * 2));
}

TEST_P(TorchDevice, CopiesWithinAndBetweenDevices) {
  const Tensor source = on(kFirst);
  const Tensor transposed = source.t().clone();
  const Tensor other = source.to(kSecond);
  source.zero_();
  EXPECT_TRUE(at::equal(transposed.cpu(), values().t()));
  EXPECT_TRUE(at::equal(other.cpu(), values()));
  EXPECT_TRUE(at::equal(other.to(at::kHalf).cpu(), values().to(at::kHalf)));
}

TEST_P(TorchDevice, CopiesPinnedMemoryWithoutWaiting) {
  const Tensor pinned = values().pin_memory();
  EXPECT_TRUE(pinned.is_pinned());
  EXPECT_FALSE(values().is_pinned());
  const uint64_t waits = host_waits();
  const Tensor there = pinned.to(kFirst, /*non_blocking=*/true).add_(1);
  Tensor back = at::empty({2, 3}, at::TensorOptions().pinned_memory(true));
  back.copy_(there, /*non_blocking=*/true);
  EXPECT_EQ(host_waits(), waits);
  guard_.synchronizeStream(main_);
  EXPECT_TRUE(at::equal(back, values() + 1));
}

TEST_P(TorchDevice, StagesMemoryThatIsNotPinned) {
  Tensor source = values();
  const Tensor there = source.to(kFirst, /*non_blocking=*/true);
  source.zero_();
  EXPECT_TRUE(at::equal(there.cpu(), values()));
}

TEST_P(TorchDevice, HasItsStreamAsNativeHandle) {
  EXPECT_EQ(side_.native_handle(), &stream_of(side_));
  EXPECT_EQ(&current_stream(0), &stream(0, 0));
  const c10::StreamGuard on_side(side_);
  EXPECT_EQ(&current_stream(0), &stream_of(side_));
  EXPECT_EQ(guard_.getStream(kFirst), side_);
  std::thread([&] { EXPECT_EQ(guard_.getStream(kFirst), main_); }).join();
}

TEST_P(TorchDevice, OrdersStreamsByEvents) {
  const Tensor source = on(kFirst).mul_(2);
  c10::Event computed(kSim, c10::EventFlag::BACKEND_DEFAULT);
  computed.record(main_);
  computed.block(side_);
  c10::Event copied(kSim, c10::EventFlag::BACKEND_DEFAULT);
  Tensor copy;
  {
    const c10::StreamGuard on_side(side_);
    copy = source.clone();
    copied.record(side_);
  }
  copied.block(main_);
  EXPECT_TRUE(at::equal((copy + 0).cpu(), values() * 2));
  EXPECT_TRUE(copied.query());
  EXPECT_GE(computed.elapsedTime(copied), 0.0);
}

TEST_P(TorchDevice, FailsForGood) {
  const Tensor weight = on(kFirst);
  const Tensor index = at::zeros({2}, at::TensorOptions(at::kLong).device(kFirst)).add_(7);
  const Tensor rows = weight.index_select(0, index);
  EXPECT_THAT(raised<DeviceError>([&] { rows.cpu(); }),
              AllOf(HasSubstr("sim:0 has failed"), HasSubstr("'index_select' failed")));
  raised<DeviceError>([&] { weight.add(1); });
  reset_device(0);
  EXPECT_TRUE(at::equal(weight.cpu(), values()));
}

TEST_P(TorchDevice, DrawsTheSameNumbersAfterTheSameSeed) {
  const auto draw = [] {
    seed_all(3);
    return at::randn({4}, kFirst).add_(at::empty({4}, kFirst).bernoulli_(0.5)).cpu();
  };
  const Tensor first = draw();
  EXPECT_TRUE(at::equal(draw(), first));
  EXPECT_FALSE(at::equal(at::randn({4}, kFirst).cpu(), at::randn({4}, kFirst).cpu()));
}

}  // namespace
}  // namespace farandole::sim
