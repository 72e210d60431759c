// SPDX-License-Identifier: Apache-2.0
#include "optim/rules/lamb_kernels.h"

#include <algorithm>
#include <cmath>

#include "kernels/sum_of_squares.h"
#include "kernels/target_clones.h"

namespace farandole {
namespace {

/// Elements whose updates are kept until their squares are summed: they stay in the level-1 cache.
constexpr int64_t kRun = 512;

template <class T>
FARANDOLE_INLINE void measure(const UpdateBlock<T>& block, const LambStep<T>& by, double* sums) {
  const LambStep<T> step = by;  // stores to arrays cannot change it
  T updates[kRun];
  for (int64_t first = 0; first < block.elements; first += kRun) {
    const int64_t elements = std::min(kRun, block.elements - first);
    const T* const parameter = block.parameter + first;
    const T* const gradient = block.gradient + first;
    const T* const exp_avg = block.states[0] + first;
    const T* const exp_avg_sq = block.states[1] + first;
#pragma GCC ivdep
    for (int64_t i = 0; i < elements; ++i) {
      T m = exp_avg[i];
      T v = exp_avg_sq[i];
      step.average(gradient[i], m, v);
      updates[i] = step.direction(parameter[i], m, v);
    }
    sums[0] += sum_of_squares(parameter, elements);
    sums[1] += sum_of_squares(updates, elements);
  }
}

template <class T>
FARANDOLE_INLINE void update(const UpdateBlock<T>& block, const LambStep<T>& by, T negative_size) {
  const LambStep<T> step = by;
  T* const parameter = block.parameter;
  const T* const gradient = block.gradient;
  T* const exp_avg = block.states[0];
  T* const exp_avg_sq = block.states[1];
  const int64_t elements = block.elements;
  // Two loops over what is in the cache: GCC makes no vectors of one that stores three arrays here.
#pragma GCC ivdep
  for (int64_t i = 0; i < elements; ++i) {
    step.average(gradient[i], exp_avg[i], exp_avg_sq[i]);
  }
#pragma GCC ivdep
  for (int64_t i = 0; i < elements; ++i) {
    const T direction = step.direction(parameter[i], exp_avg[i], exp_avg_sq[i]);
    parameter[i] = std::fma(negative_size, direction, parameter[i]);
  }
}

// A plain function for each type: see target_clones.h.
FARANDOLE_CLONES void measure_float(const UpdateBlock<float>& block, const LambStep<float>& step,
                                    double* sums) {
  measure(block, step, sums);
}
FARANDOLE_CLONES void measure_double(const UpdateBlock<double>& block, const LambStep<double>& step,
                                     double* sums) {
  measure(block, step, sums);
}
FARANDOLE_CLONES void update_float(const UpdateBlock<float>& block, const LambStep<float>& step,
                                   float negative_size) {
  update(block, step, negative_size);
}
FARANDOLE_CLONES void update_double(const UpdateBlock<double>& block, const LambStep<double>& step,
                                    double negative_size) {
  update(block, step, negative_size);
}

}  // namespace

void lamb_measure_kernel(const UpdateBlock<float>& block, const LambStep<float>& step,
                         double* sums) {
  measure_float(block, step, sums);
}
void lamb_measure_kernel(const UpdateBlock<double>& block, const LambStep<double>& step,
                         double* sums) {
  measure_double(block, step, sums);
}

void lamb_update_kernel(const UpdateBlock<float>& block, const LambStep<float>& step,
                        float negative_size) {
  update_float(block, step, negative_size);
}
void lamb_update_kernel(const UpdateBlock<double>& block, const LambStep<double>& step,
                        double negative_size) {
  update_double(block, step, negative_size);
}

}  // namespace farandole
