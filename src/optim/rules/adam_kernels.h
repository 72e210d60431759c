// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "farandole/optim/update_rule.h"
#include "optim/rules/moments.h"

namespace farandole {

/// One step of Adam or AdamW in the element type. torch's quotient
///
///   -lr / (1 - beta1^t) * m / (sqrt(v) / c + eps),  c = sqrt(1 - beta2^t)
///
/// is multiplied by c above and below: one division less, which in the cache is a third of the
/// time. The moments are rounded as torch rounds them.
template <class T>
struct AdamStep {
  Moments<T> moments;
  T sign;           ///< -1: maximize
  T weight_decay;   ///< is added to the gradient; 0: the parameter is not, be it NaN or Inf
  T shrinkage;      ///< AdamW: the parameter is multiplied by 1 - lr * weight_decay
  T eps;            ///< eps * c
  T negative_size;  ///< -lr / (1 - beta1^t) * c
  bool amsgrad;
};

/// The states are exp_avg, exp_avg_sq and with amsgrad max_exp_avg_sq.
void adam_kernel(const UpdateBlock<float>& block, const AdamStep<float>& step);
void adam_kernel(const UpdateBlock<double>& block, const AdamStep<double>& step);

}  // namespace farandole
