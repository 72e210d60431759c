// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "optim/rules/sgd_step.h"

namespace farandole {

/// What LARS multiplies the gradient of a whole parameter by; `sums`: the squares of its elements,
/// and of its gradient's. NaN if a norm is NaN.
struct LarsRate {
  double trust_coefficient;
  double weight_decay;
  double eps;

  FARANDOLE_INLINE double of(const double* sums) const {
    const double parameter_norm = std::sqrt(sums[0]);
    const double gradient_norm = std::sqrt(sums[1]);
    if (parameter_norm == 0 || gradient_norm == 0) return 1;
    return trust_coefficient * parameter_norm /
           (gradient_norm + weight_decay * parameter_norm + eps);
  }
};

}  // namespace farandole
