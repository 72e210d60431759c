// SPDX-License-Identifier: Apache-2.0
#include "farandole/ddp/reducer.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "farandole/ddp/distributed_data_parallel.h"
#include "farandole/error.h"
#include "replica_ranks.h"

namespace farandole::test {
namespace {

using torch::nn::Linear;
using torch::nn::ReLU;
using torch::nn::Sequential;

/// Small integers: sums and averages over 1, 2 and 4 ranks are exact.
at::Tensor integers(at::IntArrayRef sizes, int64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed));
  return at::randint(-3, 4, sizes, generator).to(at::kFloat);
}

/// A net of two layers whose parameters are small integers, the same on every rank.
Sequential small_net() {
  Sequential net(Linear(4, 8), ReLU(), Linear(8, 2));
  const c10::NoGradGuard no_grad;
  int64_t seed = 0;
  for (auto& parameter : net->parameters()) parameter.copy_(integers(parameter.sizes(), ++seed));
  return net;
}

at::Tensor batch_of(int rank, int step) { return integers({6, 4}, 100 * step + rank); }

/// The gradients of the mean loss over the batches of all ranks, in one plain process.
std::vector<at::Tensor> oracle(int world_size, int step) {
  Sequential net = small_net();
  for (int rank = 0; rank < world_size; ++rank) {
    (net->forward(batch_of(rank, step)).sum() / world_size).backward();
  }
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : net->parameters()) gradients.push_back(parameter.grad().clone());
  return gradients;
}

void expect_gradients(const std::vector<at::Tensor>& parameters,
                      const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(parameters.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(parameters[i].grad().defined()) << "parameter " << i;
    EXPECT_TRUE(at::equal(parameters[i].grad(), expected[i])) << "parameter " << i;
  }
}

class ReducerOf : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  std::string backend() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, ReducerOf,
                         testing::Combine(testing::Values("farandole", "foreign"),
                                          testing::Values(1, 2, 4)),
                         [](const auto& param) {
                           return std::get<0>(param.param) +
                                  std::to_string(std::get<1>(param.param)) + "Ranks";
                         });

TEST_P(ReducerOf, AveragesTheGradientsOfEveryStep) {
  run_replicas(backend(), world_size(), [&](const Group& group) {
    DistributedDataParallel ddp(small_net(), group);
    for (int step = 0; step < 4; ++step) {
      for (auto& parameter : ddp.parameters()) parameter.mutable_grad() = at::Tensor();
      ddp.forward(batch_of(group->getRank(), step)).sum().backward();
      expect_gradients(ddp.parameters(), oracle(world_size(), step));
    }
  });
}

}  // namespace
}  // namespace farandole::test
