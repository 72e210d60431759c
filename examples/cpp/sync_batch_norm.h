// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <farandole/farandole.h>
#include <torch/autograd.h>
#include <torch/nn/modules/batchnorm.h>

/// The sum of all ranks' tensors. What flows back is summed too, as each rank's loss depends on the
/// tensors of all.
struct SumOverRanks : torch::autograd::Function<SumOverRanks> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& tensor) {
    const at::Tensor sum = tensor.contiguous().clone();
    farandole::all_reduce(sum);
    return sum;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor sum = gradients[0].contiguous().clone();
    farandole::all_reduce(sum);
    return {sum};
  }
};

/// Batch normalization of (N, C, H, W) with the mean and variance of the batches of all ranks,
/// which are equally large, as farandole.SyncBatchNorm of Python. Threads and order: all ranks run
/// the same forwards and backwards.
struct SyncBatchNormImpl : torch::nn::BatchNorm2dImpl {
  using torch::nn::BatchNorm2dImpl::BatchNorm2dImpl;

  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor x = input.to(at::kFloat);
    if (!is_training()) return torch::nn::BatchNorm2dImpl::forward(x);
    const double count = static_cast<double>(x.numel() / x.size(1)) * farandole::world_size();
    const at::Tensor mean = SumOverRanks::apply(x.sum({0, 2, 3}, /*keepdim=*/true)) / count;
    const at::Tensor centered = x - mean;
    const at::Tensor variance =
        SumOverRanks::apply(centered.square().sum({0, 2, 3}, /*keepdim=*/true)) / count;
    {
      const at::NoGradGuard no_grad;
      const double momentum = options.momentum().value();
      running_mean.lerp_(mean.flatten(), momentum);
      running_var.lerp_(variance.flatten() * (count / (count - 1)), momentum);
      num_batches_tracked += 1;
    }
    const at::Tensor scale = weight.view({1, -1, 1, 1}) * at::rsqrt(variance + options.eps());
    return centered * scale + bias.view({1, -1, 1, 1});
  }
};
TORCH_MODULE(SyncBatchNorm);
