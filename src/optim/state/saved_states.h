// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "farandole/optim/sharded_optimizer.h"

namespace farandole {

/// The saved states of an optimizer's parameters, wherever they are, of which a rank takes its
/// pieces. Threads: one call at a time.
class SavedStates {
 public:
  virtual ~SavedStates();

  /// What is known of a parameter without its tensors; the same on all ranks.
  struct Outline {
    bool exists = false;      ///< whether it has a state
    int64_t step = 0;         ///< that it has taken; 1 or more if it exists and nobody counts
    bool has_master = false;  ///< whether its float32 values were saved
  };
  virtual Outline outline(size_t group, size_t parameter) const = 0;

  /// The elements of `piece` in a tensor of the state, or of kMasterParameter: one dimension, in
  /// the order of the parameter's memory. Undefined if the state has no such tensor.
  virtual at::Tensor part(size_t group, const ShardedOptimizer::Piece& piece,
                          const std::string& name) const = 0;
};

}  // namespace farandole
