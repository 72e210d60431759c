// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "farandole/optim/update_rule.h"
#include "optim/rules/sgd_step.h"

namespace farandole {

/// The step of SGD, or of LARS, whose hyperparameters have the same names.
template <class T, class Hyperparameters>
SgdStep<T> sgd_step(const Hyperparameters& sgd, const StepContext& context, double scale) {
  SgdStep<T> step;
  step.sign = static_cast<T>(sgd.maximize ? -1 : 1);
  step.weight_decay = static_cast<T>(sgd.weight_decay);
  step.scale = static_cast<T>(scale);
  step.momentum = static_cast<T>(sgd.momentum);
  step.share = static_cast<T>(1 - sgd.dampening);
  step.negative_lr = static_cast<T>(-sgd.lr);
  step.is_first = context.is_first;
  step.nesterov = sgd.nesterov;
  return step;
}

/// The state is b, if there is a momentum.
void sgd_kernel(const UpdateBlock<float>& block, const SgdStep<float>& step);
void sgd_kernel(const UpdateBlock<double>& block, const SgdStep<double>& step);

}  // namespace farandole
