// SPDX-License-Identifier: Apache-2.0
// ZeroRedundancyOptimizer and GradScaler of C++ with parameters on simulated devices.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "farandole/amp/grad_scaler.h"
#include "farandole/error.h"
#include "farandole/optim/lamb_options.h"
#include "farandole/optim/zero_redundancy_optimizer.h"
#include "simulated_groups/device_ranks.h"

namespace farandole::sim {
namespace {

using test::device_of;
using test::error_of;
using Tensors = std::vector<at::Tensor>;

constexpr int kShardRanks = 3;

/// Numbers that are the same on all ranks, on the CPU.
at::Tensor numbers(at::IntArrayRef sizes, int64_t seed, at::ScalarType type) {
  const at::Tensor index = at::arange(c10::multiply_integers(sizes), at::kDouble);
  return (index * 0.7531 + static_cast<double>(seed)).sin().reshape(sizes).to(type);
}

/// Parameters on the CPU; one has its channels last, and two are smaller than the ranks are many.
Tensors parameters() {
  Tensors made{numbers({33, 5}, 1, at::kFloat), numbers({2}, 2, at::kFloat),
               numbers({2, 3, 4, 5}, 3, at::kFloat).contiguous(at::MemoryFormat::ChannelsLast),
               numbers({65}, 4, at::kDouble), numbers({}, 5, at::kDouble)};
  for (const at::Tensor& each : made) each.set_requires_grad(true);
  return made;
}

Tensors on(c10::Device device, const Tensors& tensors) {
  Tensors moved;
  for (const at::Tensor& each : tensors) {
    moved.push_back(each.detach().to(device).set_requires_grad(each.requires_grad()));
  }
  return moved;
}

void set_gradients(const Tensors& parameters, int64_t step, double factor = 1) {
  for (const at::Tensor& each : parameters) {
    const at::Tensor gradient = numbers(each.sizes(), 10 * step, each.scalar_type()) * factor;
    each.mutable_grad() = gradient.to(each.device());
  }
}

void expect_close(const Tensors& own, const Tensors& expected) {
  for (size_t i = 0; i < own.size(); ++i) {
    EXPECT_TRUE(at::allclose(own[i].detach().cpu(), expected[i].detach(), 1e-5, 1e-6)) << i;
  }
}

/// Runs `body` with a group of each rank that serves the CPU and the rank's device.
void run_with_groups(const std::function<void(const Group&, c10::Device)>& body) {
  test::run_group_pointers(kShardRanks, [&](const test::GroupPointer& ours) {
    set_current_device(ours->getRank());
    const Group group = test::group_around(ours);
    group->setBackend(kSim, c10d::ProcessGroup::BackendType::CUSTOM, ours);
    body(group, device_of(ours->getRank()));
  });
}

ZeroOptions over(const Group& group) {
  ZeroOptions options;
  options.group = group;
  return options;
}

template <class Optimizer, class Options>
void train(const Options& options) {
  run_with_groups([&](const Group& group, c10::Device device) {
    const Tensors alone = parameters();
    const Tensors own = on(device, alone);
    ZeroRedundancyOptimizer sharded(own, options, over(group));
    Optimizer unsharded(alone, options);
    for (int64_t step = 1; step <= 4; ++step) {
      set_gradients(own, step);
      set_gradients(alone, step);
      sharded.step();
      unsharded.step();
      expect_close(own, alone);
    }
    sharded.consolidate_state_dict(1);
    if (group->getRank() != 1) return;
    for (const auto& [parameter, state] : sharded.state()) EXPECT_NE(state, nullptr);
    std::stringstream saved;
    torch::serialize::OutputArchive archive;
    sharded.save(archive);
    archive.save_to(saved);
    torch::serialize::InputArchive loaded;
    loaded.load_from(saved);
    Optimizer again(alone, options);
    again.load(loaded);
    set_gradients(alone, 5);
    again.step();  // with states on the CPU
  });
}

class DeviceShards : public NoRaces {};
INSTANTIATE_TEST_SUITE_P(, DeviceShards, kEverySchedule, ::testing::PrintToStringParamName());

TEST_P(DeviceShards, FusedRulesTrainAsUnsharded) {
  train<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  train<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
}

TEST_P(DeviceShards, OtherOptimizersTrainAsUnsharded) {
  train<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01).momentum(0.9));
}

TEST_P(DeviceShards, RanksAddUpWhatLayersNeed) {
  run_with_groups([&](const Group& group, c10::Device device) {
    // The norms of whole parameters do not depend on who has which part.
    const Tensors whole = parameters();
    const Tensors own = on(device, whole);
    ZeroOptions by_parameters = over(group);
    by_parameters.partition = Partition::kParameters;
    ZeroRedundancyOptimizer cut(own, LambOptions(0.01), over(group));
    const Tensors others = on(device, whole);
    ZeroRedundancyOptimizer uncut(others, LambOptions(0.01), by_parameters);
    for (int64_t step = 1; step <= 3; ++step) {
      for (const auto& each : {own, others}) set_gradients(each, step);
      cut.step();
      uncut.step();
    }
    expect_close(own, on(c10::kCPU, others));
  });
}

TEST_P(DeviceShards, AScalerLeavesAStepOutOnAllRanks) {
  run_with_groups([&](const Group& group, c10::Device device) {
    for (const bool is_sharded : {true, false}) {
      const Tensors alone = parameters();
      const Tensors own = on(device, alone);
      const torch::optim::SGDOptions options(0.1);
      std::unique_ptr<torch::optim::Optimizer> optimizer;
      if (is_sharded) {
        optimizer = std::make_unique<ZeroRedundancyOptimizer>(own, options, over(group));
      } else {
        optimizer = std::make_unique<torch::optim::SGD>(own, options);
      }
      torch::optim::SGD unsharded(alone, options);
      GradScaler scaler({/*init_scale=*/8});
      for (int64_t step = 1; step <= 4; ++step) {
        scaler.scale(own[0].sum());
        set_gradients(own, step, scaler.get_scale());
        set_gradients(alone, step);
        if (step == 2) own[3].grad()[64].fill_(std::numeric_limits<double>::infinity());
        EXPECT_EQ(scaler.step(*optimizer), step != 2);
        scaler.update();
        if (step != 2) unsharded.step();
      }
      EXPECT_EQ(scaler.get_scale(), 4);
      expect_close(own, alone);
    }
  });
}

/// Of a program that knows no accelerators.
class HostRule final : public UpdateRule {
 public:
  std::string description() const override { return "HostRule()"; }
  std::vector<std::string> state_names() const override { return {}; }
  void update(const UpdateBlock<float>&, const StepContext&) const override {}
  void update(const UpdateBlock<double>&, const StepContext&) const override {}
};

TEST_P(DeviceShards, RulesForHostMemoryAreRefused) {
  run_with_groups([&](const Group& group, c10::Device device) {
    const Tensors own = on(device, parameters());
    ShardedOptimizer optimizer({{own, {"a", "b", "c", "d", "e"}}}, group, GradientMode::kFull, {},
                               Partition::kElements, ShardOver::kWorld);
    set_gradients(own, 1);
    const std::string text =
        error_of<NotSupported>([&] { optimizer.step({std::make_shared<const HostRule>()}); });
    EXPECT_NE(text.find("HostRule()"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace farandole::sim
