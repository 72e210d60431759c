// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "farandole/optim/update_rule.h"

namespace farandole {

/// Adds the squares of parameters to sums[0], of gradients to sums[1].
void lars_measure_kernel(const UpdateBlock<float>& block, double* sums);
void lars_measure_kernel(const UpdateBlock<double>& block, double* sums);

}  // namespace farandole
