// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "optim/rules/moments.h"

namespace farandole {

/// The larger one; NaN if one of them is, as torch.maximum().
template <class T>
FARANDOLE_INLINE T maximum(T a, T b) {
  return a >= b || a != a ? a : b;
}

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

  /// Of one element. `decays`: weight_decay != 0; loops make it and `with_amsgrad` constants.
  FARANDOLE_INLINE void update(bool decays, bool with_amsgrad, T& parameter, T gradient, T& exp_avg,
                               T& exp_avg_sq, T& max_exp_avg_sq) const {
    const T p = parameter * shrinkage;
    T g = sign * gradient;
    if (decays) g = std::fma(p, weight_decay, g);
    const T m = moments.first(exp_avg, g);
    T v = moments.second(exp_avg_sq, g);
    exp_avg = m;
    exp_avg_sq = v;
    if (with_amsgrad) {
      v = maximum(max_exp_avg_sq, v);
      max_exp_avg_sq = v;
    }
    parameter = p + negative_size * m / (std::sqrt(v) + eps);
  }
};

}  // namespace farandole
