// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lamb.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <cmath>

#include "optim/device/rule_formulas.h"
#include "optim/rules/bias_correction.h"
#include "optim/rules/device_sums.h"
#include "optim/rules/hyperparameters.h"
#include "optim/rules/lamb_kernels.h"

namespace farandole {
namespace {

template <class T>
LambStep<T> step_of(const LambHyperparameters& lamb, const StepContext& context) {
  const bool corrects = lamb.bias_correction;
  const double first = corrects ? bias_correction(lamb.beta1, context.step) : 1;
  const double second = corrects ? std::sqrt(bias_correction(lamb.beta2, context.step)) : 1;
  return {Moments<T>(lamb.beta1, lamb.beta2), static_cast<T>(lamb.maximize ? -1 : 1),
          static_cast<T>(lamb.weight_decay),  static_cast<T>(lamb.eps),
          static_cast<T>(1 / first),          static_cast<T>(1 / second)};
}

/// The gradients of what is minimized.
std::vector<at::Tensor> descents_of(const LambHyperparameters& lamb, const DeviceUpdate& pieces) {
  return lamb.maximize ? at::_foreach_mul(pieces.gradients, -1) : pieces.gradients;
}

/// The updates before the trust ratio, from the averages of this step.
std::vector<at::Tensor> directions_of(const LambHyperparameters& lamb, const DeviceUpdate& pieces,
                                      at::TensorList exp_avgs, at::TensorList exp_avg_sqs) {
  const auto step = step_of<double>(lamb, {pieces.step, pieces.is_first, nullptr});
  auto divisors = at::_foreach_sqrt(exp_avg_sqs);
  at::_foreach_mul_(divisors, step.second_factor);
  at::_foreach_add_(divisors, step.eps);
  auto directions = at::_foreach_div(exp_avgs, divisors);
  at::_foreach_mul_(directions, step.first_factor);
  if (lamb.weight_decay != 0) {
    at::_foreach_add_(directions, pieces.parameters, lamb.weight_decay);
  }
  return directions;
}

}  // namespace

LambRule::LambRule(const LambHyperparameters& hyperparameters) : lamb_(hyperparameters) {
  check_not_negative("LAMB", "lr", lamb_.lr);
  check_beta("LAMB", "beta1", lamb_.beta1);
  check_beta("LAMB", "beta2", lamb_.beta2);
  check_not_negative("LAMB", "eps", lamb_.eps);
  check_not_negative("LAMB", "weight_decay", lamb_.weight_decay);
}

LambRule::~LambRule() = default;

std::string LambRule::description() const {
  return "LAMB(lr=" + text_of(lamb_.lr) + ", betas=(" + text_of(lamb_.beta1) + ", " +
         text_of(lamb_.beta2) + "), eps=" + text_of(lamb_.eps) +
         ", weight_decay=" + text_of(lamb_.weight_decay) +
         ", bias_correction=" + text_of(lamb_.bias_correction) +
         ", maximize=" + text_of(lamb_.maximize) + ")";
}

std::vector<std::string> LambRule::state_names() const { return {"exp_avg", "exp_avg_sq"}; }

void LambRule::measure(const UpdateBlock<float>& block, const StepContext& context,
                       double* sums) const {
  lamb_measure_kernel(block, step_of<float>(lamb_, context), sums);
}

void LambRule::measure(const UpdateBlock<double>& block, const StepContext& context,
                       double* sums) const {
  lamb_measure_kernel(block, step_of<double>(lamb_, context), sums);
}

void LambRule::update(const UpdateBlock<float>& block, const StepContext& context) const {
  const auto size = static_cast<float>(lamb_negative_size(lamb_.lr, context.sums));
  lamb_update_kernel(block, step_of<float>(lamb_, context), size);
}

void LambRule::update(const UpdateBlock<double>& block, const StepContext& context) const {
  lamb_update_kernel(block, step_of<double>(lamb_, context),
                     lamb_negative_size(lamb_.lr, context.sums));
}

std::vector<std::vector<at::Tensor>> LambRule::measure_on_device(const DeviceUpdate& pieces) const {
  const std::vector<at::Tensor> descents = descents_of(lamb_, pieces);
  const auto exp_avgs = at::_foreach_lerp(pieces.states[0], descents, 1 - lamb_.beta1);
  auto exp_avg_sqs = at::_foreach_mul(pieces.states[1], lamb_.beta2);
  at::_foreach_addcmul_(exp_avg_sqs, descents, descents, 1 - lamb_.beta2);
  return {sums_of_squares(pieces.parameters),
          sums_of_squares(directions_of(lamb_, pieces, exp_avgs, exp_avg_sqs))};
}

void LambRule::update_on_device(const DeviceUpdate& pieces) const {
  const std::vector<at::Tensor> descents = descents_of(lamb_, pieces);
  at::_foreach_lerp_(pieces.states[0], descents, 1 - lamb_.beta1);
  at::_foreach_mul_(pieces.states[1], lamb_.beta2);
  at::_foreach_addcmul_(pieces.states[1], descents, descents, 1 - lamb_.beta2);
  auto directions = directions_of(lamb_, pieces, pieces.states[0], pieces.states[1]);
  const at::Tensor parameter_norms = at::stack(pieces.sums[0]).sqrt_();
  const at::Tensor update_norms = at::stack(pieces.sums[1]).sqrt_();
  const at::Tensor is_zero = parameter_norms.eq(0).logical_or_(update_norms.eq(0));
  const at::Tensor ratios = at::where(is_zero, 1.0, parameter_norms / update_norms);
  at::_foreach_mul_(directions, (ratios * -lamb_.lr).unbind());
  at::_foreach_add_(pieces.parameters, directions);
}

std::shared_ptr<const RuleFormulas> LambRule::formulas(const StepContext& context) const {
  return std::make_shared<const RuleFormulas>(formulas_of([&](auto number) {
    using T = decltype(number);
    return AnyFormula<T>(LambFormula<T>{step_of<T>(lamb_, context), lamb_.lr});
  }));
}

}  // namespace farandole
