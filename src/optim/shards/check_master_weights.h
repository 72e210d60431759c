// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <string>

#include "farandole/optim/master_weight_options.h"

namespace farandole {

/// Throw InvalidArgument for options that cannot be, for a parameter that they are not for, and for
/// an optimizer that needs master weights and shall have none.
void check_master_weights(const MasterWeightOptions& options);
void check_can_be_rounded(const MasterWeightOptions& options, at::ScalarType dtype,
                          const std::string& parameter);
void check_keeps_masters(const MasterWeightOptions& options);

/// What ranks compare; empty for the defaults.
std::string text_of(const MasterWeightOptions& options);

}  // namespace farandole
