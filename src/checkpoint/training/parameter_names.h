// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "farandole/checkpoint/training.h"

namespace farandole::checkpoint {

/// A tensor of a model.
struct ModelTensor {
  std::string key;
  at::Tensor tensor;
  bool is_parameter;
};

/// What the keys of a model, or an optimizer, begin with: empty for a single one.
std::string model_prefix(const std::string& name);
std::string optimizer_prefix(const std::string& name);

/// Parameters, then buffers; one with two names twice.
std::vector<ModelTensor> tensors_of(const torch::nn::Module& model, const std::string& prefix);

/// The keys of parameters by their TensorImpl; of one with two names the first.
using ParameterNames = std::unordered_map<const void*, std::string>;
ParameterNames parameter_names(const NamedParts<torch::nn::Module>& models);

/// The names of an optimizer's parameters by group: those of the models, else where they stand,
/// "group.0/parameter.3".
std::vector<std::vector<std::string>> names_by_group(const torch::optim::Optimizer& optimizer,
                                                     const ParameterNames& known);

}  // namespace farandole::checkpoint
