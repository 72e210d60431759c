// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
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

  /// Of a tensor of the state, or of kMasterParameter; nullopt if the state has no such tensor.
  virtual std::optional<at::ScalarType> dtype(size_t group, size_t parameter,
                                              const std::string& name) const = 0;

  /// Puts the elements of `piece` in such a tensor into `into`: contiguous, of one dimension, in
  /// the order of the parameter's memory. False if there is none.
  virtual bool copy_part(size_t group, const ShardedOptimizer::Piece& piece,
                         const std::string& name, const at::Tensor& into) const = 0;
};

}  // namespace farandole
