// SPDX-License-Identifier: Apache-2.0
#include "farandole/ddp/sync_batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "ddp/replica_ranks.h"
#include "farandole/ddp/distributed_data_parallel.h"
#include "farandole/error.h"
#include "farandole/process_group/collectives.h"

namespace farandole {
namespace {

using test::run_replicas;
using torch::nn::BatchNormOptions;

/// The batches of all ranks, of different sizes; that of the last rank is empty in step 1.
std::vector<at::Tensor> batches(int ranks, int step, at::IntArrayRef shape) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<int64_t> of{step == 1 && rank == ranks - 1 ? 0 : 2 + (rank + step) % 3};
    of.insert(of.end(), shape.begin(), shape.end());
    auto generator = at::make_generator<at::CPUGeneratorImpl>(100 * step + rank);
    all.push_back(at::randn(of, generator, at::kDouble) * 3 + 1);
  }
  return all;
}

void expect_close(const at::Tensor& own, const at::Tensor& wanted) {
  EXPECT_TRUE(at::allclose(own, wanted, 1e-9, 1e-9)) << own << "\n" << wanted;
}

void check_as_plain(const Group& group, const BatchNormOptions& options, at::IntArrayRef shape) {
  SyncBatchNorm norm(options, group);
  torch::nn::BatchNorm2d plain(options);
  norm->to(at::kDouble);
  plain->to(at::kDouble);
  if (options.affine()) {
    const at::NoGradGuard no_grad;
    norm->weight.copy_(at::arange(1, 4));
    plain->weight.copy_(norm->weight);
  }
  const int rank = group->getRank();
  for (int step = 0; step < 3; ++step) {
    const auto all = batches(group->getSize(), step, shape);
    const at::Tensor own = all[static_cast<size_t>(rank)].clone().requires_grad_();
    const at::Tensor whole = at::cat(all).requires_grad_();
    int64_t first = 0;
    for (int i = 0; i < rank; ++i) first += all[static_cast<size_t>(i)].size(0);
    const auto mine = [&](const at::Tensor& of) { return of.narrow(0, first, own.size(0)); };
    // A plain one takes [N, C, H, W] alone.
    const at::Tensor wanted = plain(whole.view({whole.size(0), 3, -1, 1})).view_as(whole);
    const at::Tensor output = norm(own);
    expect_close(output, mine(wanted));
    const at::Tensor scale = at::arange(wanted.numel(), at::kDouble).view_as(wanted);
    (wanted * scale).sum().backward();
    (output * mine(scale)).sum().backward();
    expect_close(own.grad(), mine(whole.grad()));
    for (const auto& parameter : norm->named_parameters()) {
      all_reduce(parameter->grad(), {c10d::ReduceOp::SUM, group});
      expect_close(parameter->grad(), plain->named_parameters()[parameter.key()].grad());
    }
    norm->zero_grad();
    plain->zero_grad();
    for (const auto& buffer : norm->named_buffers()) {
      expect_close(buffer.value().to(at::kDouble),
                   plain->named_buffers()[buffer.key()].to(at::kDouble));
    }
  }
  norm->eval();
  plain->eval();
  const at::Tensor x = batches(1, 9, shape)[0];
  expect_close(norm(x), plain(x.view({x.size(0), 3, -1, 1})).view_as(x));
}

TEST(SyncBatchNorm, NormalizesTheBatchesOfAllRanks) {
  for (const std::string backend : {"shm", "foreign"}) {
    run_replicas(backend, 3, [](const Group& group) {
      check_as_plain(group, BatchNormOptions(3), {3, 4, 4});
      check_as_plain(group, BatchNormOptions(3).momentum(std::nullopt), {3, 5});
      check_as_plain(group, BatchNormOptions(3).affine(false).eps(0.1), {3});
      check_as_plain(group, BatchNormOptions(3).track_running_stats(false), {3, 2, 2, 2});
      check_as_plain(group, BatchNormOptions(3).momentum(0.7), {3, 4});
    });
  }
}

TEST(SyncBatchNorm, KeepsTheDtypeOfItsInput) {
  run_replicas("shm", 2, [](const Group& group) {
    SyncBatchNorm norm(3, group);
    const at::Tensor x = at::randn({4, 3}).to(at::kBFloat16).requires_grad_();
    const at::Tensor output = norm(x);
    output.sum().backward();
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
    EXPECT_EQ(norm->weight.grad().scalar_type(), at::kFloat);
  });
}

/// Batches of different sizes that count by their items, as in one process.
TEST(SyncBatchNorm, CountsGradientsByTheWeightsOfItsWrapper) {
  run_replicas("shm", 2, [](const Group& group) {
    const auto rank = static_cast<size_t>(group->getRank());
    const std::vector<at::Tensor> all = batches(2, 0, {3});
    const torch::nn::Linear first(3, 3);
    {
      const at::NoGradGuard no_grad;
      first->weight.copy_(at::arange(9).view({3, 3}).to(at::kFloat).sin());
      first->bias.fill_(0.5);
    }
    const auto copy = std::dynamic_pointer_cast<torch::nn::LinearImpl>(first->clone());
    torch::nn::Sequential plain(torch::nn::Linear(copy), torch::nn::BatchNorm1d(3));
    torch::nn::Sequential net(first, SyncBatchNorm(3, group));
    plain->to(at::kDouble);
    net->to(at::kDouble);
    const auto loss_of = [](const at::Tensor& output) {
      return (output * at::arange(1, 4).to(at::kDouble)).sin().mean();
    };
    DistributedDataParallel ddp(net, group);
    ddp.set_loss_weight(all[rank].size(0));
    loss_of(ddp.forward(all[rank])).backward();
    loss_of(plain->forward(at::cat(all))).backward();
    for (const auto& parameter : net->named_parameters()) {
      expect_close(parameter->grad(), plain->named_parameters()[parameter.key()].grad());
    }
  });
}

TEST(SyncBatchNorm, HasNoSecondDerivative) {
  run_replicas("shm", 2, [](const Group& group) {
    SyncBatchNorm norm(3, group);
    const at::Tensor x = at::randn({4, 3}).requires_grad_();
    const at::Tensor loss = norm(x).square().sum();
    const auto first = torch::autograd::grad({loss}, {x}, {}, std::nullopt, /*create_graph=*/true);
    try {
      first[0].square().sum().backward();
      ADD_FAILURE() << "went through a collective";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("no second derivative"));
    }
  });
}

TEST(SyncBatchNorm, TellsWhatItTakes) {
  run_replicas("shm", 1, [](const Group& group) {
    SyncBatchNorm norm(3, group);
    EXPECT_THROW(norm(at::ones({3})), InvalidArgument);
    std::ostringstream text;
    text << *norm;
    EXPECT_EQ(text.str(),
              "farandole::SyncBatchNorm(3, eps=1e-05, momentum=0.1, affine=true, "
              "track_running_stats=true)");
  });
}

}  // namespace
}  // namespace farandole
