// SPDX-License-Identifier: Apache-2.0
#include "ddp/gradient_move.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/mul.h>
#include <c10/core/ScalarType.h>

#include <cstring>
#include <optional>

#include "ddp/stream_use.h"
#include "kernels/move_kernels.h"
#include "process_group/data_type.h"

namespace farandole {
namespace {

bool is_plain_memory(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_conj() && !tensor.is_neg();
}

/// Whether the elements of both tensors have the same order in memory. Shapes are equal.
bool have_equal_strides(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_contiguous() && b.is_contiguous()) return true;
  const at::IntArrayRef sizes = a.sizes();
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != 1 && a.strides()[d] != b.strides()[d]) return false;
  }
  return true;
}

bool is_dense(const at::Tensor& tensor) {
  return tensor.is_contiguous() || tensor.is_non_overlapping_and_dense();
}

/// The kernel for tensors in host memory; nullptr if there is none for their dtypes.
MoveKernel loop_for(const at::Tensor& gradient, const at::Tensor& slot, const GradientMove& how) {
  if (!gradient.is_cpu() || !slot.is_cpu() || !is_plain_memory(slot)) return nullptr;
  const auto from = data_type_of(gradient.scalar_type());
  const auto to = data_type_of(slot.scalar_type());
  if (!from || !to) return nullptr;
  return move_kernel(*from, *to, how.accumulate, how.check_finite);
}

/// For dense tensors of equal strides, each of which is one run of memory.
bool move_run(MoveKernel loop, const at::Tensor& gradient, const at::Tensor& slot,
              const GradientMove& how) {
  const void* source = gradient.const_data_ptr();
  void* target = slot.mutable_data_ptr();
  const bool is_copy = how.scale == 1 && !how.accumulate && !how.check_finite &&
                       gradient.scalar_type() == slot.scalar_type();
  if (!is_copy) return loop(source, target, static_cast<size_t>(slot.numel()), how.scale);
  if (source != target) std::memcpy(target, source, slot.nbytes());
  return true;
}

/// The same elements in the memory order of `slot`, which is dense; in `slot` itself if its
/// contents are not needed.
at::Tensor laid_out_as(const at::Tensor& gradient, const at::Tensor& slot,
                       const GradientMove& how) {
  const bool in_place = !how.accumulate && gradient.scalar_type() == slot.scalar_type();
  at::Tensor same = in_place ? slot
                             : at::empty_strided(slot.sizes(), slot.strides(),
                                                 slot.options().dtype(gradient.scalar_type()));
  return same.copy_(gradient);
}

/// Works on a dense copy of `slot`.
bool move_into_gaps(const at::Tensor& gradient, const at::Tensor& slot, const GradientMove& how) {
  const at::Tensor dense = at::empty_like(slot, slot.options(), at::MemoryFormat::Contiguous);
  if (how.accumulate) dense.copy_(slot);
  const bool finite = move_gradient(gradient, dense, how);
  slot.copy_(dense);
  return finite;
}

/// slot = scale * gradient, rounded once to the dtype of `slot`.
void store_scaled(const at::Tensor& gradient, at::Tensor slot, double scale) {
  const at::ScalarType wide = c10::promoteTypes(gradient.scalar_type(), slot.scalar_type());
  at::mul_out(slot, gradient.to(wide), at::native::wrapped_scalar_tensor(scale));
}

/// With torch's operations, for devices other than the CPU and for any dtype.
bool move_by_torch(const at::Tensor& gradient, const at::Tensor& slot, const GradientMove& how) {
  keep_for_current_stream(gradient);
  if (how.accumulate) {
    slot.add_(gradient, how.scale);
  } else if (how.scale == 1) {
    slot.copy_(gradient);
  } else {
    store_scaled(gradient, slot, how.scale);
  }
  return !how.check_finite || at::isfinite(slot).all().item<bool>();
}

}  // namespace

bool move_gradient(const at::Tensor& gradient, const at::Tensor& slot, const GradientMove& how) {
  if (slot.numel() == 0) return true;
  const MoveKernel loop = loop_for(gradient, slot, how);
  const bool one_run =
      is_plain_memory(gradient) && have_equal_strides(gradient, slot) && is_dense(slot);
  if (loop != nullptr && one_run) return move_run(loop, gradient, slot, how);
  const at::NoGradGuard no_grad;
  if (loop == nullptr) return move_by_torch(gradient, slot, how);
  if (!is_dense(slot)) return move_into_gaps(gradient, slot, how);
  if (how.scale == 1 && !how.accumulate && !how.check_finite) {
    slot.copy_(gradient);
    return true;
  }
  return move_run(loop, laid_out_as(gradient, slot, how), slot, how);
}

}  // namespace farandole
