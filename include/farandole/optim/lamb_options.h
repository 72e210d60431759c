// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <tuple>

#include "farandole/export.h"

namespace farandole {

/// Options of LAMB (see lamb.h), in the manner of torch::optim::AdamWOptions.
struct FARANDOLE_API LambOptions : public torch::optim::OptimizerCloneableOptions<LambOptions> {
  using betas_t = std::tuple<double, double>;

  LambOptions(double lr = 1e-3);
  ~LambOptions() override;
  LambOptions(const LambOptions&) = default;
  LambOptions& operator=(const LambOptions&) = default;

  TORCH_ARG(double, lr);
  TORCH_ARG(betas_t, betas) = {0.9, 0.999};
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 1e-2;
  TORCH_ARG(bool, bias_correction) = true;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  FARANDOLE_API friend bool operator==(const LambOptions& lhs, const LambOptions& rhs);
  double get_lr() const override;
  void set_lr(double lr) override;
};

/// What LAMB keeps of a parameter.
struct FARANDOLE_API LambParamState
    : public torch::optim::OptimizerCloneableParamState<LambParamState> {
  LambParamState();
  ~LambParamState() override;
  LambParamState(const LambParamState&) = default;
  LambParamState& operator=(const LambParamState&) = default;

  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(at::Tensor, exp_avg);
  TORCH_ARG(at::Tensor, exp_avg_sq);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  FARANDOLE_API friend bool operator==(const LambParamState& lhs, const LambParamState& rhs);
};

}  // namespace farandole
