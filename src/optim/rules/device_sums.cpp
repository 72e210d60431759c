// SPDX-License-Identifier: Apache-2.0
#include "optim/rules/device_sums.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>

namespace farandole {

std::vector<at::Tensor> sums_of_squares(const std::vector<at::Tensor>& tensors) {
  const std::vector<at::Tensor> norms = at::_foreach_norm(tensors, 2, at::kDouble);
  return at::_foreach_mul(norms, norms);
}

}  // namespace farandole
