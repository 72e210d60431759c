// SPDX-License-Identifier: Apache-2.0
// Models train on a simulated device as on the CPU, and no step waits for the device.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "support/simulated_device/device.h"
#include "support/simulated_device/no_races.h"
#include "support/simulated_device/torch/boxed_kernel.h"
#include "support/simulated_device/torch/device_guard.h"
#include "support/simulated_device/torch/module_to.h"

namespace farandole::sim {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using ::testing::Each;
using ::testing::HasSubstr;

const c10::Device kDevice(kSim, 0);

struct Results {
  std::vector<Tensor> tensors;  ///< losses, then parameters and buffers, on the CPU
  uint64_t waits;               ///< of the host, in all steps
};

/// What a model is trained with.
struct Task {
  nn::Sequential model;
  Tensor input;
  Tensor target;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

Tensor classes(int64_t count) { return at::randint(5, {count}, at::kLong); }

Task multi_layer_perceptron() {
  torch::manual_seed(1);
  nn::Sequential model(nn::Linear(20, 50), nn::ReLU(), nn::LayerNorm(nn::LayerNormOptions({50})),
                       nn::Linear(50, 5));
  auto sgd = std::make_unique<torch::optim::SGD>(model->parameters(),
                                                 torch::optim::SGDOptions(0.1).momentum(0.9));
  return {model, at::randn({32, 20}), classes(32), std::move(sgd)};
}

Task convolutions() {
  torch::manual_seed(2);
  nn::Sequential model(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)), nn::BatchNorm2d(8),
                       nn::GELU(), nn::MaxPool2d(2), nn::Conv2d(nn::Conv2dOptions(8, 4, 3)),
                       nn::AdaptiveAvgPool2d(2), nn::Flatten(), nn::Linear(16, 5));
  auto adam = std::make_unique<torch::optim::AdamW>(model->parameters(), 1e-2);
  return {model, at::randn({8, 3, 8, 8}), classes(8), std::move(adam)};
}

/// Words, and a class for each.
Task transformer() {
  torch::manual_seed(3);
  nn::Sequential model(nn::Embedding(10, 8),
                       nn::TransformerEncoderLayer(
                           nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0)),
                       nn::Linear(8, 5), nn::Flatten(nn::FlattenOptions().start_dim(0).end_dim(1)));
  auto sgd = std::make_unique<torch::optim::SGD>(model->parameters(), 0.1);
  return {model, at::randint(10, {6, 4}, at::kLong), classes(24), std::move(sgd)};
}

Tensor step(Task& task) {
  task.optimizer->zero_grad();
  const Tensor loss = nn::functional::cross_entropy(task.model->forward(task.input), task.target);
  loss.backward();
  task.optimizer->step();
  return loss.detach();
}

Results train(Task task, c10::Device device) {
  nn::Module& model = *task.model;
  module_to(model, device);
  task.input = task.input.to(device);
  task.target = task.target.to(device);
  Results results;
  results.waits = host_waits();
  for (int i = 0; i < 4; ++i) results.tensors.push_back(step(task));
  results.waits = host_waits() - results.waits;
  for (const Tensor& each : model.parameters()) results.tensors.push_back(each.detach());
  for (const Tensor& each : model.buffers()) results.tensors.push_back(each);
  for (Tensor& each : results.tensors) each = each.cpu();
  return results;
}

/// The largest difference of any element.
double largest_difference(const Results& a, const Results& b) {
  double largest = 0;
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const Tensor difference = (a.tensors[i] - b.tensors[i]).abs().max();
    largest = std::max(largest, difference.item<double>());
  }
  return largest;
}

class Training : public NoRaces {};
INSTANTIATE_TEST_SUITE_P(, Training, kEverySchedule, ::testing::PrintToStringParamName());

TEST_P(Training, OfALayerNormIsThatOfTheCpuBitByBit) {
  const Results results = train(multi_layer_perceptron(), kDevice);
  EXPECT_EQ(largest_difference(results, train(multi_layer_perceptron(), at::kCPU)), 0);
  EXPECT_EQ(results.waits, 0U);
}

TEST_P(Training, OfConvolutionsIsThatOfTheCpu) {
  const Results results = train(convolutions(), kDevice);
  EXPECT_LT(largest_difference(results, train(convolutions(), at::kCPU)), 1e-5);
  EXPECT_EQ(results.waits, 0U);
}

TEST_P(Training, OfATransformerIsThatOfTheCpu) {
  take_waiting_operators();
  const Results results = train(transformer(), kDevice);
  EXPECT_LT(largest_difference(results, train(transformer(), at::kCPU)), 1e-5);
  // torch's attention asks whether query, key and value are equal.
  EXPECT_EQ(results.waits, 8U);
  EXPECT_THAT(take_waiting_operators(), Each(HasSubstr("equal: ")));
}

TEST_P(Training, MayDropUnits) {
  nn::Sequential model(nn::Linear(100, 100), nn::Dropout(0.5));
  module_to(*model, kDevice);
  const Tensor input = at::randn({10, 100}, kDevice);
  const Tensor output = model->forward(input);
  output.sum().backward();
  const double kept = output.ne(0).to(at::kFloat).mean().item<double>();
  EXPECT_NEAR(kept, 0.5, 0.1);
  model->eval();
  EXPECT_TRUE(at::equal(model->forward(input).ne(0).all().cpu(), at::ones({}, at::kBool)));
}

}  // namespace
}  // namespace farandole::sim
