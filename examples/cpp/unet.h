// SPDX-License-Identifier: Apache-2.0
// U-Net, which gives each pixel of an image the scores of its classes (arXiv:1505.04597).
// examples/python/unet.py has the same network, with the same names and first weights.
#pragma once

#include <farandole/ddp/sync_batch_norm.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>

#include <vector>

/// Two convolutions of 3 x 3, each with a batch normalization and a ReLU; the size stays.
inline torch::nn::Sequential convolutions(int64_t inputs, int64_t outputs) {
  torch::nn::Sequential layers;
  for (const int64_t channels : {inputs, outputs}) {
    auto options = torch::nn::Conv2dOptions(channels, outputs, 3);
    layers->push_back(torch::nn::Conv2d(options.padding(1).bias(false)));
    layers->push_back(farandole::SyncBatchNorm(outputs));
    layers->push_back(torch::nn::ReLU());
  }
  return layers;
}

/// Halves the size `depth` times and doubles it again, with what it saw at each size.
struct UNet : torch::nn::Module {
  torch::nn::ModuleList down, up, join;
  torch::nn::Sequential bottom{nullptr};
  torch::nn::Conv2d head{nullptr};

  UNet(int64_t classes, int64_t width, int64_t depth = 3) {
    register_module("down", down);
    register_module("up", up);
    register_module("join", join);
    for (int64_t i = 0; i < depth; ++i) {
      down->push_back(convolutions(i > 0 ? width << (i - 1) : 3, width << i));
    }
    bottom = register_module("bottom", convolutions(width << (depth - 1), width << depth));
    for (int64_t i = depth - 1; i >= 0; --i) {
      auto options = torch::nn::ConvTranspose2dOptions(width << (i + 1), width << i, 2);
      up->push_back(torch::nn::ConvTranspose2d(options.stride(2)));
      join->push_back(convolutions(2 * (width << i), width << i));
    }
    head = register_module("head", torch::nn::Conv2d(width, classes, 1));
  }

  /// (N, 3, H, W) to (N, classes, H, W); 2 ** depth divides H and W.
  at::Tensor forward(const at::Tensor& images) {
    std::vector<at::Tensor> seen;
    at::Tensor x = images;
    for (size_t i = 0; i < down->size(); ++i) {
      seen.push_back(down->ptr<torch::nn::SequentialImpl>(i)->forward(x));
      x = at::max_pool2d(seen.back(), 2);
    }
    x = bottom->forward(x);
    for (size_t i = 0; i < up->size(); ++i) {
      x = up->ptr<torch::nn::ConvTranspose2dImpl>(i)->forward(x);
      const at::Tensor before = seen[seen.size() - 1 - i];
      x = join->ptr<torch::nn::SequentialImpl>(i)->forward(at::cat({before.to(x.dtype()), x}, 1));
    }
    return head(x);
  }
};
