// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/update_rule.h"

namespace farandole {

UpdateRule::~UpdateRule() = default;

// Element-wise rules measure nothing.
void UpdateRule::measure(const UpdateBlock<float>& /*block*/, const StepContext& /*context*/,
                         double* /*sums*/) const {}
void UpdateRule::measure(const UpdateBlock<double>& /*block*/, const StepContext& /*context*/,
                         double* /*sums*/) const {}

}  // namespace farandole
