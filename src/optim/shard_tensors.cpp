// SPDX-License-Identifier: Apache-2.0
#include "optim/shard_tensors.h"

#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

namespace farandole {

ShardTensors::ShardTensors(const FlatParameters& flat, const ShardState& state) {
  const c10::NoGradGuard no_grad;
  for (const ShardPiece& piece : flat.pieces()) {
    const at::Tensor master = state.piece(kMasterParameter, piece);
    tensors_.push_back(master.defined() ? master : flat.tensor_of(piece));
    gradients_.push_back(at::zeros_like(tensors_.back()));
  }
}

}  // namespace farandole
