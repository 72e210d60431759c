// SPDX-License-Identifier: Apache-2.0
#include "optim/shards/shard_tensors.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>

#include "farandole/error.h"

namespace farandole {

ShardTensors::ShardTensors(const FlatParameters& flat, const ShardState& state) {
  const c10::NoGradGuard no_grad;
  const bool is_whole = flat.plan().partition == Partition::kParameters;
  for (const ShardPiece& piece : flat.pieces()) {
    const at::Tensor master = state.piece(kMasterParameter, piece);
    const at::Tensor elements = master.defined() ? master : flat.tensor_of(piece);
    slots_.push_back(is_whole ? flat.in_shape(piece.parameter, elements) : elements);
    tensors_.push_back(slots_.back().detach());
    // Some optimizers skip tensors that do not require gradients.
    if (is_whole) tensors_.back().set_requires_grad(true);
    gradients_.push_back(
        at::empty_strided(elements.sizes(), elements.strides(), elements.options()).zero_());
    if (is_whole) gradients_.back() = flat.in_shape(piece.parameter, gradients_.back());
  }
}

void ShardTensors::move_back() {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const at::Tensor& slot = slots_[i];
    if (tensors_[i].const_data_ptr() == slot.const_data_ptr()) continue;
    if (tensors_[i].scalar_type() != slot.scalar_type() || tensors_[i].sizes() != slot.sizes() ||
        tensors_[i].device() != slot.device()) {
      throw InvalidArgument("inner-optimizer-moved",
                            "the optimizer inside a ZeroRedundancyOptimizer changed the dtype, "
                            "shape or device of a parameter.",
                            "the parameter was " + std::string(c10::toString(slot.scalar_type())) +
                                " on " + slot.device().str() +
                                ", as is its slot in the memory of all ranks.",
                            "use an optimizer that changes parameters in place.");
    }
    slot.copy_(tensors_[i].detach());
    tensors_[i].set_data(slot);
  }
}

}  // namespace farandole
