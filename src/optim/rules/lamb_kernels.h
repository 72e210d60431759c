// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "farandole/optim/update_rule.h"
#include "optim/rules/lamb_step.h"

namespace farandole {

/// Updates the states, exp_avg and exp_avg_sq, and adds the squares of parameters to sums[0], of
/// updates to sums[1].
void lamb_measure_kernel(const UpdateBlock<float>& block, const LambStep<float>& step,
                         double* sums);
void lamb_measure_kernel(const UpdateBlock<double>& block, const LambStep<double>& step,
                         double* sums);

/// parameter += negative_size * update, which is computed again from the states.
void lamb_update_kernel(const UpdateBlock<float>& block, const LambStep<float>& step,
                        float negative_size);
void lamb_update_kernel(const UpdateBlock<double>& block, const LambStep<double>& step,
                        double negative_size);

}  // namespace farandole
