// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "optim/rules/adam_step.h"
#include "optim/rules/lamb_step.h"
#include "optim/rules/lars_step.h"
#include "optim/rules/sgd_step.h"

namespace farandole {

// What a kernel of a device does with one element: the steps that loops over host memory make too
// (optim/rules), with their bits. `states` are those of the rule, in its order. Layer-wise rules
// have measure(), which adds what the element contributes to `sums`, and take their sums in of(),
// once for all elements of a parameter.

template <class T>
struct AdamFormula {
  using Number = T;
  AdamStep<T> step;

  FARANDOLE_INLINE const AdamFormula& of(const double* /*sums*/) const { return *this; }
  FARANDOLE_INLINE void update(T& parameter, T gradient, T* states) const {
    step.update(step.weight_decay != 0, step.amsgrad, parameter, gradient, states[0], states[1],
                states[2]);
  }
};

template <class T>
struct SgdFormula {
  using Number = T;
  SgdStep<T> step;

  FARANDOLE_INLINE const SgdFormula& of(const double* /*sums*/) const { return *this; }
  FARANDOLE_INLINE void update(T& parameter, T gradient, T* states) const {
    step.update(step.weight_decay != 0, step.momentum != 0, step.is_first, step.nesterov, parameter,
                gradient, states[0]);
  }
};

template <class T>
struct LarsFormula {
  using Number = T;
  SgdStep<T> step;
  LarsRate rate;

  FARANDOLE_INLINE SgdFormula<T> of(const double* sums) const {
    SgdFormula<T> scaled{step};
    scaled.step.scale = static_cast<T>(rate.of(sums));
    return scaled;
  }
  FARANDOLE_INLINE void measure(T parameter, T gradient, const T* /*states*/, double* sums) const {
    sums[0] += static_cast<double>(parameter) * static_cast<double>(parameter);
    sums[1] += static_cast<double>(gradient) * static_cast<double>(gradient);
  }
};

/// LAMB with the size that measure() has found.
template <class T>
struct LambUpdate {
  LambStep<T> step;
  T negative_size;

  FARANDOLE_INLINE void update(T& parameter, T gradient, T* states) const {
    step.average(gradient, states[0], states[1]);
    parameter = std::fma(negative_size, step.direction(parameter, states[0], states[1]), parameter);
  }
};

template <class T>
struct LambFormula {
  using Number = T;
  LambStep<T> step;
  double lr;

  FARANDOLE_INLINE LambUpdate<T> of(const double* sums) const {
    return {step, static_cast<T>(lamb_negative_size(lr, sums))};
  }
  FARANDOLE_INLINE void measure(T parameter, T gradient, const T* states, double* sums) const {
    T m = states[0];
    T v = states[1];
    step.average(gradient, m, v);
    const T direction = step.direction(parameter, m, v);
    sums[0] += static_cast<double>(parameter) * static_cast<double>(parameter);
    sums[1] += static_cast<double>(direction) * static_cast<double>(direction);
  }
};

}  // namespace farandole
