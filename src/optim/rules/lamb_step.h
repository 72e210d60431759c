// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "optim/rules/moments.h"

namespace farandole {

/// One step of LAMB in the element type.
template <class T>
struct LambStep {
  Moments<T> moments;
  T sign;  ///< -1: maximize
  T weight_decay;
  T eps;
  T first_factor;   ///< 1 / (1 - beta1^step), or 1
  T second_factor;  ///< 1 / sqrt(1 - beta2^step), or 1

  /// Of one element, from updated averages: the direction, which the trust ratio then scales.
  FARANDOLE_INLINE T direction(T parameter, T exp_avg, T exp_avg_sq) const {
    const T adam = first_factor * exp_avg / std::fma(std::sqrt(exp_avg_sq), second_factor, eps);
    return std::fma(weight_decay, parameter, adam);
  }
  FARANDOLE_INLINE void average(T gradient, T& exp_avg, T& exp_avg_sq) const {
    const T g = sign * gradient;
    exp_avg = moments.first(exp_avg, g);
    exp_avg_sq = moments.second(exp_avg_sq, g);
  }
};

/// -lr times the trust ratio of a whole parameter; `sums`: the squares of its elements, and of its
/// direction's. NaN if a norm is NaN.
FARANDOLE_INLINE double lamb_negative_size(double lr, const double* sums) {
  const double parameter_norm = std::sqrt(sums[0]);
  const double update_norm = std::sqrt(sums[1]);
  if (parameter_norm == 0 || update_norm == 0) return -lr;
  return -lr * (parameter_norm / update_norm);
}

}  // namespace farandole
