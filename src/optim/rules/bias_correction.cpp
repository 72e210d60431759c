// SPDX-License-Identifier: Apache-2.0
#include "optim/rules/bias_correction.h"

#include <array>
#include <cmath>
#include <cstddef>

namespace farandole {

double bias_correction(double beta, int64_t step) {
  struct Kept {
    double beta;
    int64_t step;
    double correction;
  };
  thread_local std::array<Kept, 2> kept{};  // no step is 0
  thread_local size_t oldest = 0;
  for (const Kept& each : kept) {
    if (each.beta == beta && each.step == step) return each.correction;
  }
  const double correction = 1 - std::pow(beta, static_cast<double>(step));
  kept[oldest] = {beta, step, correction};
  oldest = 1 - oldest;
  return correction;
}

}  // namespace farandole
