// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "checkpoint/format/json.h"

namespace farandole::debugger {

/// Throws InvalidArgument for a name that is no reduction.
void check_reductions(const std::vector<std::string>& names);

/// Reductions of a tensor by their names, and how many elements are "zeros", "nan" and "inf". Half
/// types are reduced in float32, whole numbers in float64, complex ones by their absolute values.
/// An empty tensor has no reductions.
checkpoint::Json::Object measure(const at::Tensor& tensor, const std::vector<std::string>& names);

/// NaN and Inf are strings: JSON has no numbers for them.
checkpoint::Json storable(double value);

}  // namespace farandole::debugger
