// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "optim/shards/flat_parameters.h"
#include "optim/state/shard_state.h"

namespace farandole {

/// The name of the float32 values of parameters of half types, among the arrays of a ShardState.
inline constexpr char kMasterParameter[] = "master_parameter";

/// This rank's pieces as parameters of an unsharded optimizer: one-dimensional tensors, or whole
/// parameters in their shape. They share the memory of the parameters, or of their float32 master
/// weights. Threads: one at a time.
class ShardTensors {
 public:
  /// The float32 values have been made.
  ShardTensors(const FlatParameters& flat, const ShardState& state);

  const at::Tensor& tensor(size_t piece) const { return tensors_[piece]; }
  /// Memory for its gradient.
  const at::Tensor& gradient(size_t piece) const { return gradients_[piece]; }
  /// Moves tensors back that the optimizer has moved to other memory (p.data = ...), with their
  /// values. Throws InvalidArgument if one has another dtype, device or number of elements.
  void move_back();

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> slots_;  ///< the same memory, whatever becomes of tensors_
  std::vector<at::Tensor> gradients_;
};

}  // namespace farandole
