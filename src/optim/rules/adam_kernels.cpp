// SPDX-License-Identifier: Apache-2.0
#include "optim/rules/adam_kernels.h"

#include <cmath>

#include "kernels/target_clones.h"

namespace farandole {
namespace {

/// The larger one; NaN if one of them is, as torch.maximum().
template <class T>
FARANDOLE_INLINE T maximum(T a, T b) {
  return a >= b || a != a ? a : b;
}

template <class T, bool decays, bool amsgrad>
FARANDOLE_INLINE void adam_typed(const UpdateBlock<T>& block, const AdamStep<T>& by) {
  const AdamStep<T> step = by;  // stores to arrays cannot change it
  T* const parameter = block.parameter;
  const T* const gradient = block.gradient;
  T* const exp_avg = block.states[0];
  T* const exp_avg_sq = block.states[1];
  T* const max_exp_avg_sq = amsgrad ? block.states[2] : nullptr;
  const int64_t elements = block.elements;
#pragma GCC ivdep
  for (int64_t i = 0; i < elements; ++i) {
    const T p = parameter[i] * step.shrinkage;
    T g = step.sign * gradient[i];
    if (decays) g = std::fma(p, step.weight_decay, g);
    const T m = step.moments.first(exp_avg[i], g);
    T v = step.moments.second(exp_avg_sq[i], g);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    if (amsgrad) {
      v = maximum(max_exp_avg_sq[i], v);
      max_exp_avg_sq[i] = v;
    }
    parameter[i] = p + step.negative_size * m / (std::sqrt(v) + step.eps);
  }
}

template <class T>
FARANDOLE_INLINE void adam(const UpdateBlock<T>& block, const AdamStep<T>& step) {
  if (step.weight_decay == 0) {
    if (step.amsgrad) return adam_typed<T, false, true>(block, step);
    return adam_typed<T, false, false>(block, step);
  }
  if (step.amsgrad) return adam_typed<T, true, true>(block, step);
  adam_typed<T, true, false>(block, step);
}

// A plain function for each type: see target_clones.h.
FARANDOLE_CLONES void adam_float(const UpdateBlock<float>& block, const AdamStep<float>& step) {
  adam(block, step);
}
FARANDOLE_CLONES void adam_double(const UpdateBlock<double>& block, const AdamStep<double>& step) {
  adam(block, step);
}

}  // namespace

void adam_kernel(const UpdateBlock<float>& block, const AdamStep<float>& step) {
  adam_float(block, step);
}
void adam_kernel(const UpdateBlock<double>& block, const AdamStep<double>& step) {
  adam_double(block, step);
}

}  // namespace farandole
