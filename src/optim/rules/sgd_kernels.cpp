// SPDX-License-Identifier: Apache-2.0
#include "optim/rules/sgd_kernels.h"

#include "kernels/target_clones.h"

namespace farandole {
namespace {

enum class Momentum { kNone, kFirst, kLater, kFirstNesterov, kLaterNesterov };

template <class T, bool decays, Momentum momentum>
FARANDOLE_INLINE void sgd_typed(const UpdateBlock<T>& block, const SgdStep<T>& by) {
  constexpr bool is_first = momentum == Momentum::kFirst || momentum == Momentum::kFirstNesterov;
  constexpr bool nesterov =
      momentum == Momentum::kFirstNesterov || momentum == Momentum::kLaterNesterov;
  const SgdStep<T> step = by;  // stores to arrays cannot change it
  T* const parameter = block.parameter;
  const T* const gradient = block.gradient;
  T* const buffer = momentum == Momentum::kNone ? nullptr : block.states[0];
  const int64_t elements = block.elements;
#pragma GCC ivdep
  for (int64_t i = 0; i < elements; ++i) {
    T unused = 0;
    step.update(decays, momentum != Momentum::kNone, is_first, nesterov, parameter[i], gradient[i],
                momentum != Momentum::kNone ? buffer[i] : unused);
  }
}

template <class T, bool decays>
FARANDOLE_INLINE void sgd_by_momentum(const UpdateBlock<T>& block, const SgdStep<T>& step) {
  if (step.momentum == 0) return sgd_typed<T, decays, Momentum::kNone>(block, step);
  if (step.nesterov) {
    if (step.is_first) return sgd_typed<T, decays, Momentum::kFirstNesterov>(block, step);
    return sgd_typed<T, decays, Momentum::kLaterNesterov>(block, step);
  }
  if (step.is_first) return sgd_typed<T, decays, Momentum::kFirst>(block, step);
  sgd_typed<T, decays, Momentum::kLater>(block, step);
}

template <class T>
FARANDOLE_INLINE void sgd(const UpdateBlock<T>& block, const SgdStep<T>& step) {
  if (step.weight_decay == 0) return sgd_by_momentum<T, false>(block, step);
  sgd_by_momentum<T, true>(block, step);
}

// A plain function for each type: see target_clones.h.
FARANDOLE_CLONES void sgd_float(const UpdateBlock<float>& block, const SgdStep<float>& step) {
  sgd(block, step);
}
FARANDOLE_CLONES void sgd_double(const UpdateBlock<double>& block, const SgdStep<double>& step) {
  sgd(block, step);
}

}  // namespace

void sgd_kernel(const UpdateBlock<float>& block, const SgdStep<float>& step) {
  sgd_float(block, step);
}
void sgd_kernel(const UpdateBlock<double>& block, const SgdStep<double>& step) {
  sgd_double(block, step);
}

}  // namespace farandole
