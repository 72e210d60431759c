// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lars_options.h"

#include <torch/optim/serialize.h>
#include <torch/utils.h>

namespace farandole {

LarsOptions::LarsOptions(double lr) : lr_(lr) {}
LarsOptions::~LarsOptions() = default;

void LarsOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(momentum);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(dampening);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(nesterov);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(trust_coefficient);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
}

void LarsOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, momentum);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, dampening);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, nesterov);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, trust_coefficient);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
}

bool operator==(const LarsOptions& lhs, const LarsOptions& rhs) {
  return lhs.lr() == rhs.lr() && lhs.momentum() == rhs.momentum() &&
         lhs.dampening() == rhs.dampening() && lhs.weight_decay() == rhs.weight_decay() &&
         lhs.nesterov() == rhs.nesterov() && lhs.trust_coefficient() == rhs.trust_coefficient() &&
         lhs.eps() == rhs.eps();
}

double LarsOptions::get_lr() const { return lr(); }
void LarsOptions::set_lr(double lr) { this->lr(lr); }

LarsParamState::LarsParamState() = default;
LarsParamState::~LarsParamState() = default;

void LarsParamState::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(momentum_buffer);
}

void LarsParamState::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, momentum_buffer);
}

bool operator==(const LarsParamState& lhs, const LarsParamState& rhs) {
  return torch::equal_if_defined(lhs.momentum_buffer(), rhs.momentum_buffer());
}

}  // namespace farandole
