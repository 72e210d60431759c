// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace farandole {

/// The sum of the squares of each tensor's elements, a scalar of float64 on its device.
std::vector<at::Tensor> sums_of_squares(const std::vector<at::Tensor>& tensors);

}  // namespace farandole
