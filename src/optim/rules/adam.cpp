// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/adam.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

#include <cmath>

#include "optim/device/rule_formulas.h"
#include "optim/rules/adam_kernels.h"
#include "optim/rules/bias_correction.h"
#include "optim/rules/hyperparameters.h"

namespace farandole {
namespace {

/// Scalars are computed in float64 and rounded once, as torch does.
template <class T>
AdamStep<T> step_of(const AdamHyperparameters& adam, const StepContext& context) {
  const bool decoupled = adam.decoupled_weight_decay;
  const double correction = std::sqrt(bias_correction(adam.beta2, context.step));
  const double size = adam.lr / bias_correction(adam.beta1, context.step);
  return {Moments<T>(adam.beta1, adam.beta2),
          static_cast<T>(adam.maximize ? -1 : 1),
          static_cast<T>(decoupled ? 0 : adam.weight_decay),
          static_cast<T>(decoupled ? 1 - adam.lr * adam.weight_decay : 1),
          static_cast<T>(adam.eps * correction),
          static_cast<T>(-size * correction),
          adam.amsgrad};
}

const char* name_of(const AdamHyperparameters& adam) {
  return adam.decoupled_weight_decay ? "AdamW" : "Adam";
}

}  // namespace

AdamRule::AdamRule(const AdamHyperparameters& hyperparameters) : adam_(hyperparameters) {
  const char* const name = name_of(adam_);
  check_not_negative(name, "lr", adam_.lr);
  check_beta(name, "beta1", adam_.beta1);
  check_beta(name, "beta2", adam_.beta2);
  check_not_negative(name, "eps", adam_.eps);
  check_not_negative(name, "weight_decay", adam_.weight_decay);
}

AdamRule::~AdamRule() = default;

std::string AdamRule::description() const {
  return std::string(name_of(adam_)) + "(lr=" + text_of(adam_.lr) + ", betas=(" +
         text_of(adam_.beta1) + ", " + text_of(adam_.beta2) + "), eps=" + text_of(adam_.eps) +
         ", weight_decay=" + text_of(adam_.weight_decay) + ", amsgrad=" + text_of(adam_.amsgrad) +
         ", maximize=" + text_of(adam_.maximize) + ")";
}

std::vector<std::string> AdamRule::state_names() const {
  if (adam_.amsgrad) return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  return {"exp_avg", "exp_avg_sq"};
}

void AdamRule::update(const UpdateBlock<float>& block, const StepContext& context) const {
  adam_kernel(block, step_of<float>(adam_, context));
}

void AdamRule::update(const UpdateBlock<double>& block, const StepContext& context) const {
  adam_kernel(block, step_of<double>(adam_, context));
}

/// torch's kernels take the step as a tensor, and change gradients only if they get a scale.
void AdamRule::update_on_device(const DeviceUpdate& pieces) const {
  const auto options = pieces.parameters.front().options().dtype(at::kFloat);
  const at::Tensor step = at::full({}, static_cast<double>(pieces.step), options);
  const std::vector<at::Tensor> steps(pieces.parameters.size(), step);
  const auto largest = adam_.amsgrad ? pieces.states[2] : std::vector<at::Tensor>();
  const auto update = [&](const auto& fused) {
    fused(pieces.parameters, pieces.gradients, pieces.states[0], pieces.states[1], largest, steps,
          adam_.lr, adam_.beta1, adam_.beta2, adam_.weight_decay, adam_.eps, adam_.amsgrad,
          adam_.maximize);
  };
  if (adam_.decoupled_weight_decay) {
    update([](const auto&... arguments) { at::_fused_adamw_(arguments...); });
  } else {
    update([](const auto&... arguments) { at::_fused_adam_(arguments...); });
  }
}

std::shared_ptr<const RuleFormulas> AdamRule::formulas(const StepContext& context) const {
  return std::make_shared<const RuleFormulas>(formulas_of([&](auto number) {
    using T = decltype(number);
    return AnyFormula<T>(AdamFormula<T>{step_of<T>(adam_, context)});
  }));
}

}  // namespace farandole
