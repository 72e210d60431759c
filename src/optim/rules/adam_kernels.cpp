// SPDX-License-Identifier: Apache-2.0
#include "optim/rules/adam_kernels.h"

#include "kernels/target_clones.h"

namespace farandole {
namespace {

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
    T unused = 0;
    step.update(decays, amsgrad, parameter[i], gradient[i], exp_avg[i], exp_avg_sq[i],
                amsgrad ? max_exp_avg_sq[i] : unused);
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
