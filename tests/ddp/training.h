// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <string>
#include <vector>

#include "ddp/replica_ranks.h"
#include "farandole/ddp/distributed_data_parallel.h"

namespace farandole::test {

/// Small integers: sums and averages over 1, 2 and 4 ranks are exact.
inline at::Tensor integers(at::IntArrayRef sizes, int64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed));
  return at::randint(-3, 4, sizes, generator).to(at::kFloat);
}

/// Small integers as parameters, the same on every rank.
template <class Module>
void fill_with_integers(Module& module) {
  const c10::NoGradGuard no_grad;
  int64_t seed = 0;
  for (auto& parameter : module.parameters()) parameter.copy_(integers(parameter.sizes(), ++seed));
}

/// A net of two layers, with weights that are large enough to be born in their buckets.
inline torch::nn::Sequential small_net() {
  torch::nn::Sequential net(torch::nn::Linear(4, 2048), torch::nn::ReLU(),
                            torch::nn::Linear(2048, 2));
  fill_with_integers(*net);
  return net;
}

/// What one rank does in one step, with a replica or, as the oracle, with a plain module.
template <class Net>
struct Pass {
  Net net;
  int rank;
  int step;
  /// The forward that is synchronized.
  std::function<at::Tensor(const at::Tensor&)> forward;
  /// Runs a function under no_sync().
  std::function<void(const std::function<void()>&)> locally;

  at::Tensor batch(int part = 0) const { return integers({6, 4}, 1000 * step + 10 * part + rank); }
};

inline void zero_gradients(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) parameter.mutable_grad() = at::Tensor();
}

/// Whether what is written to `tensor` shows in `other`, of as many elements: memory that ranks
/// share may have several addresses.
inline bool shares_memory(const at::Tensor& tensor, const at::Tensor& other) {
  const at::Tensor before = tensor.clone();
  tensor.fill_(-12345);
  const bool shows = other.eq(-12345).all().item<bool>();
  tensor.copy_(before);
  return shows;
}

inline std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& gradient = parameter.grad();
    gradients.push_back(gradient.defined() ? gradient.detach().to_dense().clone() : at::Tensor());
  }
  return gradients;
}

/// The mean over the ranks of the gradients that `body` leaves, in one plain process; undefined
/// where no rank has one.
template <class Make, class Body>
std::vector<at::Tensor> oracle(int world_size, int step, const Make& make, const Body& body) {
  using Net = decltype(make());
  std::vector<at::Tensor> sums;
  for (int rank = 0; rank < world_size; ++rank) {
    Net net = make();
    body(Pass<Net>{net, rank, step, [net](const at::Tensor& x) mutable { return net->forward(x); },
                   [](const std::function<void()>& local) { local(); }});
    const std::vector<at::Tensor> gradients = gradients_of(net->parameters());
    zero_gradients(net->parameters());  // one with a graph of its own would keep itself alive
    sums.resize(gradients.size());
    for (size_t i = 0; i < sums.size(); ++i) {
      if (!gradients[i].defined()) continue;
      sums[i] = sums[i].defined() ? sums[i] + gradients[i] : gradients[i];
    }
  }
  for (at::Tensor& sum : sums) {
    if (sum.defined()) sum = sum / world_size;
  }
  return sums;
}

inline void expect_gradients(const std::vector<at::Tensor>& parameters,
                             const std::vector<at::Tensor>& expected, const std::string& where) {
  const std::vector<at::Tensor> got = gradients_of(parameters);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(got[i].defined(), expected[i].defined()) << "parameter " << i << " " << where;
    if (!got[i].defined() || !expected[i].defined()) continue;
    EXPECT_TRUE(at::equal(got[i], expected[i])) << "parameter " << i << " " << where;
  }
}

/// One step of `body` with a replica, its gradients against the oracle's.
template <class Net, class Make, class Body>
void expect_step(DistributedDataParallel<Net>& ddp, const Group& group, int step, const Make& make,
                 const Body& body) {
  zero_gradients(ddp.parameters());
  body(Pass<decltype(make())>{ddp.module(), group->getRank(), step,
                              [&](const at::Tensor& x) { return ddp.forward(x); },
                              [&](const std::function<void()>& local) {
                                const auto no_sync = ddp.no_sync();
                                local();
                              }});
  expect_gradients(
      ddp.parameters(), oracle(group->getSize(), step, make, body),
      "on rank " + std::to_string(group->getRank()) + " in step " + std::to_string(step));
}

/// Four steps: the first one plans, in the others gradients are born in their buckets.
template <class Make, class Body>
void expect_as_one_process(const std::string& backend, int world_size, const Make& make,
                           const Body& body, const ReplicaOptions& options = {}) {
  run_replicas(backend, world_size, [&](const Group& group) {
    DistributedDataParallel ddp(make(), group, options);
    for (int step = 0; step < 4; ++step) expect_step(ddp, group, step, make, body);
    zero_gradients(ddp.parameters());  // one with a graph and its parameter keep each other alive
  });
}

}  // namespace farandole::test
