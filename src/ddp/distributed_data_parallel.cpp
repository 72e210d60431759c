// SPDX-License-Identifier: Apache-2.0
#include "farandole/ddp/distributed_data_parallel.h"

#include <torch/nn/modules/embedding.h>

namespace farandole {
namespace {

NamedTensors named(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  NamedTensors result;
  for (const auto& item : tensors) result.emplace_back(item.key(), item.value());
  return result;
}

}  // namespace

NamedTensors named_parameters_of(const torch::nn::Module& module) {
  return named(module.named_parameters());
}

NamedTensors named_buffers_of(const torch::nn::Module& module) {
  return named(module.named_buffers());
}

ReplicaOptions with_sparse_embeddings(ReplicaOptions options, const torch::nn::Module& module) {
  for (const auto& item : module.named_modules()) {
    const auto* embedding = item.value()->as<torch::nn::Embedding>();
    const auto* bag = item.value()->as<torch::nn::EmbeddingBag>();
    if ((embedding != nullptr && embedding->options.sparse()) ||
        (bag != nullptr && bag->options.sparse())) {
      options.sparse.insert(item.key().empty() ? "weight" : item.key() + ".weight");
    }
  }
  return options;
}

}  // namespace farandole
