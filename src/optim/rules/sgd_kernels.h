// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "farandole/optim/update_rule.h"

namespace farandole {

/// One step of SGD in the element type, rounded where torch.optim.SGD rounds:
///
///   d = scale * (sign * gradient + weight_decay * parameter)
///   b = d in the first step, then momentum * b + share * d
///   parameter += negative_lr * (d, or b, or with Nesterov d + momentum * b)
template <class T>
struct SgdStep {
  T sign;          ///< -1: maximize
  T weight_decay;  ///< 0: the parameter is not added, be it NaN or Inf
  T scale;         ///< of LARS; 1 changes no bit
  T momentum;      ///< 0: there is no b
  T share;         ///< 1 - dampening
  T negative_lr;
  bool is_first;
  bool nesterov;
};

/// That of SGD, or of LARS, whose hyperparameters have the same names.
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
