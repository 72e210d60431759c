// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "kernels/target_clones.h"

namespace farandole {

/// The running averages of Adam and LAMB in the element type, rounded where torch rounds:
///
///   m = lerp(m, g, 1 - beta1)
///   v = beta2 * v + (1 - beta2) * g * g
template <class T>
struct Moments {
  T lerp;         ///< 1 - beta1, or -beta1 for what is counted from g
  bool from_old;  ///< lerp() counts from the old average, else from g: torch takes the nearer
  T beta2;
  T square_share;  ///< 1 - beta2

  Moments(double beta1, double beta2_of)
      : lerp(static_cast<T>(1 - beta1)),
        from_old(lerp < static_cast<T>(0.5)),
        beta2(static_cast<T>(beta2_of)),
        square_share(static_cast<T>(1 - beta2_of)) {
    if (!from_old) lerp = lerp - 1;
  }

  FARANDOLE_INLINE T first(T m, T g) const { return std::fma(lerp, g - m, from_old ? m : g); }
  FARANDOLE_INLINE T second(T v, T g) const { return std::fma(square_share * g, g, beta2 * v); }
};

}  // namespace farandole
