// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "farandole/optim/update_rule.h"
#include "optim/rules/adam_step.h"

namespace farandole {

/// The states are exp_avg, exp_avg_sq and with amsgrad max_exp_avg_sq.
void adam_kernel(const UpdateBlock<float>& block, const AdamStep<float>& step);
void adam_kernel(const UpdateBlock<double>& block, const AdamStep<double>& step);

}  // namespace farandole
