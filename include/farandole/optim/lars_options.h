// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include "farandole/export.h"

namespace farandole {

/// Options of LARS (see lars.h), in the manner of torch::optim::SGDOptions.
struct FARANDOLE_API LarsOptions : public torch::optim::OptimizerCloneableOptions<LarsOptions> {
  LarsOptions(double lr);
  ~LarsOptions() override;
  LarsOptions(const LarsOptions&) = default;
  LarsOptions& operator=(const LarsOptions&) = default;

  TORCH_ARG(double, lr);
  TORCH_ARG(double, momentum) = 0.9;
  TORCH_ARG(double, dampening) = 0;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, nesterov) = false;
  TORCH_ARG(double, trust_coefficient) = 1e-3;
  TORCH_ARG(double, eps) = 1e-8;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  FARANDOLE_API friend bool operator==(const LarsOptions& lhs, const LarsOptions& rhs);
  double get_lr() const override;
  void set_lr(double lr) override;
};

/// What LARS keeps of a parameter.
struct FARANDOLE_API LarsParamState
    : public torch::optim::OptimizerCloneableParamState<LarsParamState> {
  LarsParamState();
  ~LarsParamState() override;
  LarsParamState(const LarsParamState&) = default;
  LarsParamState& operator=(const LarsParamState&) = default;

  TORCH_ARG(at::Tensor, momentum_buffer);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  FARANDOLE_API friend bool operator==(const LarsParamState& lhs, const LarsParamState& rhs);
};

}  // namespace farandole
