// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "farandole/optim/sharded_optimizer.h"

namespace farandole {

/// What one rank has of the state of a parameter: of the elements of one piece. Views, which the
/// next step changes.
struct OwnedState {
  size_t group;
  ShardedOptimizer::Piece piece;
  /// By the names of StateFields and kMasterParameter: the elements of the piece, of one dimension.
  std::vector<std::pair<std::string, at::Tensor>> parts;
  std::optional<int64_t> step;  ///< nullopt if the state counts none
};

}  // namespace farandole
