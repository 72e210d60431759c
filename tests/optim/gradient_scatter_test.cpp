// SPDX-License-Identifier: Apache-2.0
#include "optim/step/gradient_scatter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "ddp/replica_ranks.h"
#include "farandole/ddp/distributed_data_parallel.h"
#include "farandole/optim/zero_redundancy_optimizer.h"

namespace farandole {
namespace {

using test::ForeignBackend;

/// The gradient of each weight is what forward() gets.
struct Slopes : torch::nn::Module {
  std::vector<at::Tensor> weights;

  explicit Slopes(const std::vector<at::ScalarType>& dtypes) {
    for (size_t i = 0; i < dtypes.size(); ++i) {
      weights.push_back(
          register_parameter("weight" + std::to_string(i), at::zeros({1000}, dtypes[i])));
    }
  }
  at::Tensor forward(double slope) {
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (const at::Tensor& weight : weights) {
      loss = loss + (weight * slope).to(at::kDouble).sum();
    }
    return loss;
  }
};

/// One rank's model and its optimizer, which takes the whole average off each weight.
struct ScatterRank {
  std::shared_ptr<Slopes> model;
  std::unique_ptr<DistributedDataParallel<Slopes>> ddp;
  std::unique_ptr<ZeroRedundancyOptimizer> optimizer;

  ScatterRank(const Group& group, std::optional<at::ScalarType> wire_dtype, GradientMode mode,
              const std::vector<at::ScalarType>& dtypes) {
    model = std::make_shared<Slopes>(dtypes);
    ReplicaOptions options;
    options.wire_dtype = wire_dtype;
    ddp = std::make_unique<DistributedDataParallel<Slopes>>(model, group, options);
    ZeroOptions zero;
    zero.gradients = mode;
    optimizer = std::make_unique<ZeroRedundancyOptimizer>(*ddp, SGDOptions(1), zero);
  }
  void step(double slope) {
    optimizer->zero_grad();
    ddp->forward(slope).backward();
    optimizer->step();
    optimizer->wait();
  }
};

using Body = std::function<void(const Group&, ForeignBackend&)>;

/// Ranks of a group without shared memory.
void run_foreign(int world_size, const Body& body) {
  test::run_group_pointers(world_size, [&](const test::GroupPointer& ours) {
    auto backend = c10::make_intrusive<ForeignBackend>(ours);
    body(test::group_around(backend), *backend);
  });
}

TEST(GradientScatter, SendsHalfTheBytesAsAHalfType) {
  run_foreign(2, [](const Group& group, ForeignBackend& backend) {
    std::vector<int64_t> sent, told;
    for (const auto& wire : {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)}) {
      ScatterRank rank(group, wire, GradientMode::kShard, {at::kFloat});
      rank.step(1);
      backend.gradient_bytes();
      rank.step(1);
      sent.push_back(backend.gradient_bytes() / 2);  // the other half stays
      told.push_back(rank.optimizer->engine().bytes_moved());
    }
    EXPECT_EQ(sent[0], 2 * sent[1]);
    // Parameters travel as they are.
    const int64_t parameters = sent[0];
    EXPECT_EQ(told, (std::vector<int64_t>{sent[0] + parameters, sent[1] + parameters}));
  });
}

/// By name; its reduce_scatter, which would move as much as an all_reduce, is not to be called.
class Gloo final : public ForeignBackend {
 public:
  using ForeignBackend::ForeignBackend;
  const std::string getBackendName() const override { return "gloo"; }
  Work _reduce_scatter_base(at::Tensor&, at::Tensor&, const c10d::ReduceScatterOptions&) override {
    throw std::runtime_error("a reduce_scatter over gloo");
  }
};

TEST(GradientScatter, ExchangesOverGlooAsTheyAre) {
  for (const int world_size : {1, 2, 3}) {
    test::run_group_pointers(world_size, [&](const test::GroupPointer& ours) {
      auto backend = c10::make_intrusive<Gloo>(ours);
      const Group group = test::group_around(backend);
      ScatterRank rank(group, std::nullopt, GradientMode::kShard, {at::kFloat, at::kDouble});
      for (int step = 0; step < 3; ++step) rank.step(group->getRank());
      for (const at::Tensor& weight : rank.model->weights) {
        EXPECT_TRUE(weight.eq(-1.5 * (world_size - 1)).all().item<bool>());
      }
      backend->gradient_bytes();
      rank.step(1);
      const int64_t shards = backend->gradient_bytes() / world_size * (world_size - 1);
      EXPECT_EQ(rank.optimizer->engine().bytes_moved(), 2 * shards);  // parameters too
    });
  }
}

/// A bucket of each dtype: those of half types travel as they are, complex ones go the other way.
TEST(GradientScatter, KnowsWhatEachDtypeTravelsAs) {
  run_foreign(2, [](const Group& group, ForeignBackend& backend) {
    for (const auto& [dtype, bytes] : std::vector<std::pair<at::ScalarType, int64_t>>{
             {at::kDouble, 2}, {at::kFloat, 2}, {at::kBFloat16, 2}, {at::kHalf, 2}}) {
      ScatterRank rank(group, at::kHalf, GradientMode::kShard, {dtype});
      rank.step(1);
      backend.gradient_bytes();
      rank.step(1);
      EXPECT_GE(backend.gradient_bytes(), 1000 * bytes) << dtype;
      rank.step(1);
      EXPECT_LE(backend.gradient_bytes(), 1100 * bytes) << dtype;
    }
  });
}

/// 256 and 1 are bfloat16, their sum and mean are not.
TEST(GradientScatter, AddsUpInFloat32WhatCame) {
  for (const int world_size : {2, 4}) {
    run_foreign(world_size, [&](const Group& group, ForeignBackend&) {
      const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kDouble, at::kBFloat16};
      ScatterRank rank(group, at::kBFloat16, GradientMode::kShard, dtypes);
      rank.step(group->getRank() == 0 ? 256 : 1);
      const double mean = (256.0 + world_size - 1) / world_size;
      for (const size_t i : {0, 1}) {
        EXPECT_TRUE(rank.model->weights[i].eq(-mean).all().item<bool>()) << i;
      }
      for (const at::Tensor& master : rank.optimizer->engine().state(0, "master_parameter")) {
        EXPECT_TRUE(master.eq(-mean).all().item<bool>());
      }
    });
  }
}

TEST(GradientScatter, RoundsGradientsOnTheirWayAlone) {
  const double slope = 1 + 1.0 / 4096;  // 1 as a bfloat16
  for (const GradientMode mode : {GradientMode::kFull, GradientMode::kShard}) {
    run_foreign(2, [&](const Group& group, ForeignBackend&) {
      ScatterRank rank(group, at::kBFloat16, mode, {at::kFloat});
      rank.step(slope);
      EXPECT_TRUE(rank.model->weights[0].eq(-1).all().item<bool>());
    });
    // Where ranks share memory nothing travels.
    test::run_replicas("farandole", 2, [&](const Group& group) {
      ScatterRank rank(group, at::kBFloat16, mode, {at::kFloat});
      rank.step(slope);
      EXPECT_TRUE(rank.model->weights[0].eq(-slope).all().item<bool>());
    });
  }
}

/// Inf and NaN arrive, also where a float32 is too large for a float16.
TEST(GradientScatter, BringsInfAndNanOver) {
  run_foreign(2, [](const Group& group, ForeignBackend&) {
    for (const double slope : {1e6, std::numeric_limits<double>::quiet_NaN()}) {
      ScatterRank rank(group, at::kHalf, GradientMode::kShard, {at::kFloat});
      rank.step(group->getRank() == 1 ? slope : 1);
      EXPECT_FALSE(rank.model->weights[0].isfinite().any().item<bool>());
    }
  });
}

}  // namespace
}  // namespace farandole
