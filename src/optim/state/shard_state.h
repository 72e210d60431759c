// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "farandole/optim/shard_plan.h"

namespace farandole {

/// The dtype of the optimizer state of parameters of `dtype`: float32 for half types, else the
/// same.
at::ScalarType state_dtype_of(at::ScalarType dtype);

/// The optimizer state of one rank's shards: arrays by name, one a bucket and as long as its shard.
/// Threads: one at a time.
class ShardState {
 public:
  ShardState(ShardPlan plan, int rank) : plan_(std::move(plan)), rank_(rank) {}

  /// Makes an array of zeros if it is not there. True if it was not.
  bool make(const std::string& name, size_t bucket);
  /// Undefined if it was not made.
  at::Tensor array(const std::string& name, size_t bucket) const;
  /// The elements of a piece. Undefined likewise.
  at::Tensor piece(const std::string& name, const ShardPiece& piece) const;
  /// Where they begin in an array that was made.
  void* address(const std::string& name, const ShardPiece& piece) const;
  /// The names that `bucket` has.
  std::vector<std::string> names(size_t bucket) const;
  int64_t bytes() const;

 private:
  const ShardPlan plan_;
  const int rank_;
  std::map<std::string, std::vector<at::Tensor>> arrays_;
};

}  // namespace farandole
