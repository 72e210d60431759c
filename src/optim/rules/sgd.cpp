// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/sgd.h"

#include <ATen/ops/_fused_sgd.h>

#include "optim/device/rule_formulas.h"
#include "optim/rules/hyperparameters.h"
#include "optim/rules/sgd_kernels.h"

namespace farandole {

SgdRule::SgdRule(const SgdHyperparameters& hyperparameters) : sgd_(hyperparameters) {
  check_not_negative("SGD", "lr", sgd_.lr);
  check_not_negative("SGD", "momentum", sgd_.momentum);
  check_not_negative("SGD", "weight_decay", sgd_.weight_decay);
  if (sgd_.nesterov) check_nesterov("SGD", sgd_.momentum, sgd_.dampening);
}

SgdRule::~SgdRule() = default;

std::string SgdRule::description() const {
  return "SGD(lr=" + text_of(sgd_.lr) + ", momentum=" + text_of(sgd_.momentum) +
         ", dampening=" + text_of(sgd_.dampening) + ", weight_decay=" + text_of(sgd_.weight_decay) +
         ", nesterov=" + text_of(sgd_.nesterov) + ", maximize=" + text_of(sgd_.maximize) + ")";
}

std::vector<std::string> SgdRule::state_names() const {
  if (sgd_.momentum == 0) return {};
  return {"momentum_buffer"};
}

void SgdRule::update(const UpdateBlock<float>& block, const StepContext& context) const {
  sgd_kernel(block, sgd_step<float>(sgd_, context, /*scale=*/1));
}

void SgdRule::update(const UpdateBlock<double>& block, const StepContext& context) const {
  sgd_kernel(block, sgd_step<double>(sgd_, context, /*scale=*/1));
}

void SgdRule::update_on_device(const DeviceUpdate& pieces) const {
  const auto momentum = sgd_.momentum != 0 ? pieces.states[0] : std::vector<at::Tensor>();
  at::_fused_sgd_(pieces.parameters, pieces.gradients, momentum, sgd_.weight_decay, sgd_.momentum,
                  sgd_.lr, sgd_.dampening, sgd_.nesterov, sgd_.maximize, pieces.is_first);
}

std::shared_ptr<const RuleFormulas> SgdRule::formulas(const StepContext& context) const {
  return std::make_shared<const RuleFormulas>(formulas_of([&](auto number) {
    using T = decltype(number);
    return AnyFormula<T>(SgdFormula<T>{sgd_step<T>(sgd_, context, /*scale=*/1)});
  }));
}

}  // namespace farandole
