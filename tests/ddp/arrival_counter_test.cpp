// SPDX-License-Identifier: Apache-2.0
#include "ddp/arrival_counter.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

namespace farandole::test {
namespace {

at::Tensor parameter() { return at::ones({3}).set_requires_grad(true); }

/// A counter of two parameters, and what it has called back with.
struct Counted {
  std::vector<at::Tensor> parameters{parameter(), parameter()};
  std::vector<std::optional<size_t>> calls;
  std::shared_ptr<ArrivalCounter> counter =
      ArrivalCounter::make(parameters, [this](std::optional<size_t> excess) {
        calls.push_back(excess);
        if (!excess) {
          for (const at::Tensor& each : parameters) EXPECT_TRUE(each.grad().defined());
        }
      });

  void backward(size_t index) const { parameters[index].sum().backward(); }
};

const std::vector<std::optional<size_t>> kOnce{std::nullopt};

TEST(ArrivalCounter, CallsWhenEachParameterHasItsGradient) {
  Counted counted;
  counted.counter->reset(1);
  EXPECT_FALSE(counted.counter->has_arrivals());
  counted.backward(1);
  EXPECT_TRUE(counted.counter->has_arrivals());
  EXPECT_TRUE(counted.calls.empty());
  counted.backward(0);
  EXPECT_EQ(counted.calls, kOnce);
}

TEST(ArrivalCounter, CountsPasses) {
  Counted counted;
  counted.counter->reset(2);
  for (const size_t index : {0, 0, 1}) counted.backward(index);
  EXPECT_TRUE(counted.calls.empty());
  counted.backward(1);
  EXPECT_EQ(counted.calls, kOnce);
}

TEST(ArrivalCounter, CountsAllUsesWithinOneBackwardOnce) {
  Counted counted;
  counted.counter->reset(1);
  const at::Tensor& a = counted.parameters[0];
  const at::Tensor& b = counted.parameters[1];
  (a * b + a).sum().backward();
  EXPECT_EQ(counted.calls, kOnce);
}

TEST(ArrivalCounter, NamesAParameterThatGetsOneMore) {
  Counted counted;
  counted.counter->reset(1);
  counted.backward(1);
  counted.backward(1);
  const std::vector<std::optional<size_t>> expected{1};
  EXPECT_EQ(counted.calls, expected);
  counted.backward(0);
  EXPECT_EQ(counted.calls.size(), 2U);
  EXPECT_FALSE(counted.calls.back());
}

TEST(ArrivalCounter, BeginsAnewWithEachStep) {
  Counted counted;
  for (int step = 0; step < 3; ++step) {
    counted.calls.clear();
    counted.counter->reset(1);
    EXPECT_FALSE(counted.counter->has_arrivals());
    counted.backward(0);
    counted.backward(1);
    EXPECT_EQ(counted.calls, kOnce) << "in step " << step;
  }
  counted.counter->reset(1);
  counted.backward(0);
  counted.calls.clear();
  counted.counter->reset(1);  // half of a step is forgotten
  counted.backward(1);
  EXPECT_TRUE(counted.calls.empty());
}

TEST(ArrivalCounter, FollowsAParameterThatWasFrozenForAWhile) {
  Counted counted;
  counted.counter->reset(1);
  counted.parameters[0].set_requires_grad(false);
  counted.parameters[0].set_requires_grad(true);  // autograd has another node for it
  counted.counter->reset(1);
  counted.backward(0);
  counted.backward(1);
  EXPECT_EQ(counted.calls, kOnce);
}

TEST(ArrivalCounter, WhatTheCallbackThrowsLeavesBackward) {
  const at::Tensor own = parameter();
  const auto counter = ArrivalCounter::make(
      {own}, [](std::optional<size_t>) { throw std::runtime_error("no rank is left"); });
  counter->reset(1);
  EXPECT_THROW(own.sum().backward(), std::runtime_error);
}

TEST(ArrivalCounter, IsSilentOnceItIsGone) {
  const at::Tensor own = parameter();
  int calls = 0;
  auto counter = ArrivalCounter::make({own}, [&](std::optional<size_t>) { ++calls; });
  counter->reset(1);
  counter.reset();
  own.sum().backward();
  EXPECT_EQ(calls, 0);
}

}  // namespace
}  // namespace farandole::test
