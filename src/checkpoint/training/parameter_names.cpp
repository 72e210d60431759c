// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/training/parameter_names.h"

namespace farandole::checkpoint {

std::string model_prefix(const std::string& name) { return name.empty() ? "" : name + "."; }
std::string optimizer_prefix(const std::string& name) { return name.empty() ? "" : name + ":"; }

std::vector<ModelTensor> tensors_of(const torch::nn::Module& model, const std::string& prefix) {
  std::vector<ModelTensor> tensors;
  for (const auto& each : model.named_parameters()) {
    if (each.value().defined()) tensors.push_back({prefix + each.key(), each.value(), true});
  }
  for (const auto& each : model.named_buffers()) {
    if (each.value().defined()) tensors.push_back({prefix + each.key(), each.value(), false});
  }
  return tensors;
}

ParameterNames parameter_names(const NamedParts<torch::nn::Module>& models) {
  ParameterNames names;
  for (const auto& [name, model] : models.by_name()) {
    for (const ModelTensor& each : tensors_of(*model, model_prefix(name))) {
      if (each.is_parameter) names.try_emplace(each.tensor.unsafeGetTensorImpl(), each.key);
    }
  }
  return names;
}

std::vector<std::vector<std::string>> names_by_group(const torch::optim::Optimizer& optimizer,
                                                     const ParameterNames& known) {
  std::vector<std::vector<std::string>> names;
  for (const auto& group : optimizer.param_groups()) {
    names.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      const auto found = known.find(parameter.unsafeGetTensorImpl());
      names.back().push_back(found != known.end()
                                 ? found->second
                                 : "group." + std::to_string(names.size() - 1) + "/parameter." +
                                       std::to_string(names.back().size()));
    }
  }
  return names;
}

}  // namespace farandole::checkpoint
