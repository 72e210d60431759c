// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lamb.h"

#include <cmath>

#include "optim/rules/bias_correction.h"
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

/// -lr times the trust ratio; NaN if a norm is NaN.
double negative_size(const LambHyperparameters& lamb, const double* sums) {
  const double parameter_norm = std::sqrt(sums[0]);
  const double update_norm = std::sqrt(sums[1]);
  if (parameter_norm == 0 || update_norm == 0) return -lamb.lr;
  return -lamb.lr * (parameter_norm / update_norm);
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
  const auto size = static_cast<float>(negative_size(lamb_, context.sums));
  lamb_update_kernel(block, step_of<float>(lamb_, context), size);
}

void LambRule::update(const UpdateBlock<double>& block, const StepContext& context) const {
  lamb_update_kernel(block, step_of<double>(lamb_, context), negative_size(lamb_, context.sums));
}

}  // namespace farandole
