// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "kernels/target_clones.h"

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

  /// Of one element. Loops make constants of `decays`: weight_decay != 0, `has_momentum`:
  /// momentum != 0, `begins`: is_first, and `looks_ahead`: nesterov.
  FARANDOLE_INLINE void update(bool decays, bool has_momentum, bool begins, bool looks_ahead,
                               T& parameter, T gradient, T& buffer) const {
    T d = sign * gradient;
    if (decays) d = std::fma(parameter, weight_decay, d);
    d = scale * d;
    if (has_momentum) {
      const T b = begins ? d : std::fma(d, share, momentum * buffer);
      buffer = b;
      d = looks_ahead ? std::fma(b, momentum, d) : b;
    }
    parameter = std::fma(d, negative_lr, parameter);
  }
};

}  // namespace farandole
