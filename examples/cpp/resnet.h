// SPDX-License-Identifier: Apache-2.0
// Residual networks for images (arXiv:1512.03385), begun as recipes for large batches do.
// examples/python/resnet.py has the same networks, with the same names and first weights.
#pragma once

#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

inline const std::map<std::string, std::vector<int64_t>> kResNetLayers = {
    {"resnet18", {2, 2, 2, 2}}, {"resnet34", {3, 4, 6, 3}}, {"resnet50", {3, 4, 6, 3}}};

/// Without a bias, as a batch normalization follows.
inline torch::nn::Conv2d convolution(int64_t inputs, int64_t outputs, int64_t size,
                                     int64_t stride = 1) {
  auto options = torch::nn::Conv2dOptions(inputs, outputs, size);
  options.stride(stride).padding(size / 2).bias(false);
  return torch::nn::Conv2d(options);
}

/// Convolutions whose result is added to the input: two, or three around a narrow one.
struct ResidualBlock : torch::nn::Module {
  torch::nn::ModuleList convs, norms;
  torch::nn::Sequential shortcut;

  ResidualBlock(int64_t inputs, int64_t width, int64_t stride, bool bottleneck) {
    const int64_t outputs = bottleneck ? 4 * width : width;
    register_module("convs", convs);
    register_module("norms", norms);
    if (bottleneck) {
      convs->push_back(convolution(inputs, width, 1));
      convs->push_back(convolution(width, width, 3, stride));
      convs->push_back(convolution(width, outputs, 1));
    } else {
      convs->push_back(convolution(inputs, width, 3, stride));
      convs->push_back(convolution(width, width, 3));
    }
    for (size_t i = 0; i < convs->size(); ++i) {
      norms->push_back(torch::nn::BatchNorm2d(i + 1 < convs->size() ? width : outputs));
    }
    // So that a block adds nothing at first: arXiv:1706.02677, section 5.1.
    torch::nn::init::zeros_(norms->ptr<torch::nn::BatchNorm2dImpl>(convs->size() - 1)->weight);
    register_module("shortcut", shortcut);
    if (stride != 1 || inputs != outputs) {
      shortcut->push_back(convolution(inputs, outputs, 1, stride));
      shortcut->push_back(torch::nn::BatchNorm2d(outputs));
    }
  }

  /// (N, inputs, H, W) to (N, outputs, H / stride, W / stride).
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (size_t i = 0; i < convs->size(); ++i) {
      y = convs->ptr<torch::nn::Conv2dImpl>(i)->forward(i > 0 ? at::relu(y) : y);
      y = norms->ptr<torch::nn::BatchNorm2dImpl>(i)->forward(y);
    }
    return at::relu(y + (shortcut->is_empty() ? x : shortcut->forward(x)));
  }
};

/// Images to scores of their classes. The stride of a bottleneck is in its 3x3 convolution.
struct ResNet : torch::nn::Module {
  torch::nn::Conv2d conv = convolution(3, 64, 7, 2);
  torch::nn::BatchNorm2d norm{64};
  torch::nn::MaxPool2d pool{torch::nn::MaxPool2dOptions(3).stride(2).padding(1)};
  torch::nn::Sequential blocks;
  torch::nn::Linear head{nullptr};

  /// `model`: a name in kResNetLayers.
  ResNet(const std::string& model, int64_t classes) {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("pool", pool);
    register_module("blocks", blocks);
    const bool bottleneck = model == "resnet50";
    int64_t channels = 64, width = 64;
    for (const int64_t count : kResNetLayers.at(model)) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t stride = width > 64 && i == 0 ? 2 : 1;
        blocks->push_back(std::make_shared<ResidualBlock>(channels, width, stride, bottleneck));
        channels = bottleneck ? 4 * width : width;
      }
      width *= 2;
    }
    head = register_module("head", torch::nn::Linear(channels, classes));
    for (const auto& module : modules(/*include_self=*/false)) {
      if (const auto* found = module->as<torch::nn::Conv2d>()) {
        torch::nn::init::kaiming_normal_(found->weight, 0, torch::kFanOut, torch::kReLU);
      }
    }
    torch::nn::init::normal_(head->weight, 0, 0.01);
    torch::nn::init::zeros_(head->bias);
  }

  /// (N, 3, H, W) to (N, classes).
  at::Tensor forward(const at::Tensor& images) {
    const at::Tensor x = blocks->forward(pool(at::relu(norm(conv(images)))));
    return head(x.mean({2, 3}));
  }
};
