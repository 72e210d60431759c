// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "farandole/optim/update_rule.h"
#include "optim/shards/shard_layout.h"
#include "optim/shards/shard_ranks.h"
#include "optim/step/gradient_sources.h"
#include "optim/step/step_pass.h"

namespace farandole {

/// What an StepPass goes through: the pieces that this rank owns, with all addresses.
///
/// Vectors keep their memory from step to step. Threads: one call at a time.
class StepPieces {
 public:
  StepPieces(const ShardLayout& layout, const ShardRanks& ranks) : layout_(layout), ranks_(ranks) {}

  /// This rank's pieces of the parameters that have gradients. `rules`: of each parameter group, or
  /// none: then there are gradients, parameters and master weights alone. `changes`: of gradients;
  /// lives longer.
  void make(const UpdateRules& rules, const GradientSources& gradients,
            const std::vector<GradientChange>& changes);
  /// Also the gradients of parameters that no rank owns yet, whole.
  void add_newly_trainable(const GradientSources& gradients,
                           const std::vector<GradientChange>& changes);
  /// Also this gradient alone.
  void add_gradient(const at::Tensor& gradient, const std::vector<GradientChange>& changes);
  void clear();
  /// Call after the last addition.
  const std::vector<StepPiece>& complete();
  /// The same again.
  const std::vector<StepPiece>& pieces() const { return pieces_; }

  /// All sums are 0; make() does it too.
  void reset_sums();
  /// Adds up what StepPass::measure() has found on all ranks, in rank order, for the rules.
  /// `has_failed`: on this rank. False if a rank has failed. Collective.
  bool share_sums(bool has_failed);

 private:
  void add_rule(StepPiece& update, const UpdateRule& rule, const ShardLayout::Part& part,
                const ShardPiece& piece);

  const ShardLayout& layout_;
  const ShardRanks& ranks_;
  std::vector<StepPiece> pieces_;
  std::vector<std::vector<std::string>> state_names_;  ///< of the rules, by parameter group
  std::vector<const void*> addresses_;                 ///< that pieces_ point to
  std::vector<double> sums_;                           ///< kMostSums a parameter
};

}  // namespace farandole
