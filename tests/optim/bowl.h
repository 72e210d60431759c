// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/view_as_real.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ddp/replica_ranks.h"
#include "farandole/ddp/distributed_data_parallel.h"
#include "farandole/optim/sharded_optimizer.h"

namespace farandole::test {

inline constexpr GradientMode kBothModes[] = {GradientMode::kFull, GradientMode::kShard};

struct BowlWeight {
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;
};

/// Nothing that ranks divide, nothing and next to nothing, and elements in another order.
inline const std::vector<BowlWeight> kOddWeights = {
    {{33, 17}}, {{1031}}, {{}}, {{4, 7, 3, 3}}, {{0}}, {{5, 3}, at::kDouble}, {{129}, at::kDouble}};

/// Small integers and halves, the same wherever they are asked for.
inline at::Tensor drawn(const at::Tensor& like, int64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed));
  if (!like.is_complex()) return at::randint(-7, 8, like.sizes(), generator).to(like.dtype()) / 2;
  const at::Tensor drawn = at::empty_like(like);
  const at::Tensor reals = at::view_as_real(drawn);
  reals.copy_(at::randint(-7, 8, reals.sizes(), generator) / 2);
  return drawn;
}

/// The loss of each element is a parabola that each rank moves in each step: gradients are
/// element-wise, so their bits do not depend on where parameters lie in memory.
struct Bowl : torch::nn::Module {
  std::vector<at::Tensor> weights;

  explicit Bowl(const std::vector<BowlWeight>& specs = kOddWeights) {
    for (size_t i = 0; i < specs.size(); ++i) {
      at::Tensor weight = at::empty(specs[i].shape, specs[i].dtype);
      if (weight.dim() == 4) weight = weight.contiguous(at::MemoryFormat::ChannelsLast);
      weight.copy_(drawn(weight, 100 + static_cast<int64_t>(i)));
      weights.push_back(register_parameter("weight" + std::to_string(i), weight));
    }
  }

  /// The loss on `rank` in `step`. Its gradient is weight - target.
  at::Tensor forward(int rank, int step) {
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (size_t i = 0; i < weights.size(); ++i) {
      if (!weights[i].requires_grad()) continue;
      const at::Tensor away = weights[i] - drawn(weights[i], 1000 * step + 10 * rank);
      const at::Tensor square = (away.is_complex() ? at::view_as_real(away) : away).square();
      loss = loss + square.sum().to(at::kDouble) / 2;
    }
    return loss;
  }
};

inline std::shared_ptr<Bowl> bowl(const std::vector<BowlWeight>& specs = kOddWeights) {
  return std::make_shared<Bowl>(specs);
}

/// Adds what `world_size` ranks have in the middle to the gradients of `plain`, one process.
inline void average_gradients(Bowl& plain, int world_size, int step) {
  const c10::AutoGradMode with_grad(true);
  std::vector<at::Tensor> sums(plain.weights.size());
  std::vector<at::Tensor> before;
  for (const at::Tensor& weight : plain.weights) before.push_back(weight.grad());
  for (int rank = 0; rank < world_size; ++rank) {
    plain.zero_grad();
    plain.forward(rank, step).backward();
    for (size_t i = 0; i < sums.size(); ++i) {
      const at::Tensor& gradient = plain.weights[i].grad();
      if (gradient.defined()) sums[i] = sums[i].defined() ? sums[i] + gradient : gradient.clone();
    }
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    if (sums[i].defined()) sums[i] = sums[i] / world_size;
    if (sums[i].defined() && before[i].defined()) sums[i] = before[i] + sums[i];
    plain.weights[i].mutable_grad() = sums[i].defined() ? sums[i] : before[i];
  }
}

/// The weights of `plain` after each of `steps` calls of `step`, with gradients of all ranks.
template <class Step>
std::vector<std::vector<at::Tensor>> trained(Bowl& plain, int world_size, int steps,
                                             const Step& step) {
  std::vector<std::vector<at::Tensor>> weights;
  for (int number = 1; number <= steps; ++number) {
    plain.zero_grad();
    average_gradients(plain, world_size, number);
    step();
    weights.emplace_back();
    for (const at::Tensor& weight : plain.weights)
      weights.back().push_back(weight.detach().clone());
  }
  return weights;
}

/// With `tolerance` 0 every bit.
inline void expect_weights(const Bowl& got, const std::vector<at::Tensor>& expected,
                           double tolerance, const std::string& where) {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor& own = got.weights[i];
    const at::Tensor& right = expected[i];
    const bool is_equal =
        tolerance == 0 ? at::equal(own, right) : at::allclose(own, right, tolerance, tolerance);
    if (is_equal) continue;
    ADD_FAILURE() << "weight" << i << " is off by " << (own - right).abs().max() << " " << where;
  }
}

inline std::vector<std::string> names_of(const Bowl& bowl) {
  std::vector<std::string> names;
  for (const auto& named : named_parameters_of(bowl)) names.push_back(named.first);
  return names;
}

}  // namespace farandole::test
