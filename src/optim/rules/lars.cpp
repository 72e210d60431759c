// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lars.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include "optim/device/rule_formulas.h"
#include "optim/rules/device_sums.h"
#include "optim/rules/hyperparameters.h"
#include "optim/rules/lars_kernels.h"
#include "optim/rules/lars_step.h"
#include "optim/rules/sgd_kernels.h"

namespace farandole {
namespace {

LarsRate rate_of(const LarsHyperparameters& lars) {
  return {lars.trust_coefficient, lars.weight_decay, lars.eps};
}

}  // namespace

LarsRule::LarsRule(const LarsHyperparameters& hyperparameters) : lars_(hyperparameters) {
  check_not_negative("LARS", "lr", lars_.lr);
  check_not_negative("LARS", "momentum", lars_.momentum);
  check_not_negative("LARS", "weight_decay", lars_.weight_decay);
  check_not_negative("LARS", "trust_coefficient", lars_.trust_coefficient);
  check_not_negative("LARS", "eps", lars_.eps);
  if (lars_.nesterov) check_nesterov("LARS", lars_.momentum, lars_.dampening);
}

LarsRule::~LarsRule() = default;

std::string LarsRule::description() const {
  return "LARS(lr=" + text_of(lars_.lr) + ", momentum=" + text_of(lars_.momentum) +
         ", dampening=" + text_of(lars_.dampening) +
         ", weight_decay=" + text_of(lars_.weight_decay) + ", nesterov=" + text_of(lars_.nesterov) +
         ", trust_coefficient=" + text_of(lars_.trust_coefficient) + ", eps=" + text_of(lars_.eps) +
         ", maximize=" + text_of(lars_.maximize) + ")";
}

std::vector<std::string> LarsRule::state_names() const {
  if (lars_.momentum == 0) return {};
  return {"momentum_buffer"};
}

void LarsRule::measure(const UpdateBlock<float>& block, const StepContext& /*context*/,
                       double* sums) const {
  lars_measure_kernel(block, sums);
}

void LarsRule::measure(const UpdateBlock<double>& block, const StepContext& /*context*/,
                       double* sums) const {
  lars_measure_kernel(block, sums);
}

void LarsRule::update(const UpdateBlock<float>& block, const StepContext& context) const {
  sgd_kernel(block, sgd_step<float>(lars_, context, rate_of(lars_).of(context.sums)));
}

void LarsRule::update(const UpdateBlock<double>& block, const StepContext& context) const {
  sgd_kernel(block, sgd_step<double>(lars_, context, rate_of(lars_).of(context.sums)));
}

std::vector<std::vector<at::Tensor>> LarsRule::measure_on_device(const DeviceUpdate& pieces) const {
  return {sums_of_squares(pieces.parameters), sums_of_squares(pieces.gradients)};
}

/// SGD of gradients times the local learning rate.
void LarsRule::update_on_device(const DeviceUpdate& pieces) const {
  const at::Tensor parameter_norms = at::stack(pieces.sums[0]).sqrt_();
  const at::Tensor gradient_norms = at::stack(pieces.sums[1]).sqrt_();
  const at::Tensor is_zero = parameter_norms.eq(0).logical_or_(gradient_norms.eq(0));
  const at::Tensor rates = lars_.trust_coefficient * parameter_norms /
                           (gradient_norms + lars_.weight_decay * parameter_norms + lars_.eps);
  auto gradients = at::_foreach_mul(pieces.gradients, lars_.maximize ? -1 : 1);
  if (lars_.weight_decay != 0) {
    at::_foreach_add_(gradients, pieces.parameters, lars_.weight_decay);
  }
  at::_foreach_mul_(gradients, at::where(is_zero, 1.0, rates).unbind());
  const auto momentum = lars_.momentum != 0 ? pieces.states[0] : std::vector<at::Tensor>();
  at::_fused_sgd_(pieces.parameters, gradients, momentum, /*weight_decay=*/0, lars_.momentum,
                  lars_.lr, lars_.dampening, lars_.nesterov, /*maximize=*/false, pieces.is_first);
}

std::shared_ptr<const RuleFormulas> LarsRule::formulas(const StepContext& context) const {
  return std::make_shared<const RuleFormulas>(formulas_of([&](auto number) {
    using T = decltype(number);
    return AnyFormula<T>(LarsFormula<T>{sgd_step<T>(lars_, context, /*scale=*/1), rate_of(lars_)});
  }));
}

}  // namespace farandole
