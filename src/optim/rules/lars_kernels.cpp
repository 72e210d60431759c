// SPDX-License-Identifier: Apache-2.0
#include "optim/rules/lars_kernels.h"

#include "kernels/sum_of_squares.h"
#include "kernels/target_clones.h"

namespace farandole {
namespace {

template <class T>
FARANDOLE_INLINE void measure(const UpdateBlock<T>& block, double* sums) {
  sums[0] += sum_of_squares(block.parameter, block.elements);
  sums[1] += sum_of_squares(block.gradient, block.elements);
}

// A plain function for each type: see target_clones.h.
FARANDOLE_CLONES void measure_float(const UpdateBlock<float>& block, double* sums) {
  measure(block, sums);
}
FARANDOLE_CLONES void measure_double(const UpdateBlock<double>& block, double* sums) {
  measure(block, sums);
}

}  // namespace

void lars_measure_kernel(const UpdateBlock<float>& block, double* sums) {
  measure_float(block, sums);
}
void lars_measure_kernel(const UpdateBlock<double>& block, double* sums) {
  measure_double(block, sums);
}

}  // namespace farandole
