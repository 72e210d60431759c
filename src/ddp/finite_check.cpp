// SPDX-License-Identifier: Apache-2.0
#include "ddp/finite_check.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>

#include "kernels/finite_kernels.h"
#include "process_group/data_type.h"

namespace farandole {

bool is_finite(const at::Tensor& tensor, size_t terms) {
  const at::NoGradGuard no_grad;
  const bool may_have_others = tensor.is_floating_point() || tensor.is_complex();
  if (tensor.numel() == 0 || !may_have_others) return true;
  if (tensor.layout() != at::kStrided) {
    return tensor.layout() == at::kSparse ? is_finite(tensor._values(), terms)
                                          : is_finite(tensor.to_dense(), terms);
  }
  const auto dtype = data_type_of(c10::toRealValueType(tensor.scalar_type()));
  if (tensor.is_cpu() && dtype && tensor.is_non_overlapping_and_dense()) {
    const size_t reals = static_cast<size_t>(tensor.numel()) * (tensor.is_complex() ? 2 : 1);
    return comm::are_finite(tensor.const_data_ptr(), reals, *dtype, terms);
  }
  return at::isfinite(tensor).all().item<bool>();
}

}  // namespace farandole
