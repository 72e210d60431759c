// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "farandole/optim/update_rule.h"
#include "optim/shards/shard_layout.h"
#include "optim/shards/shard_ranks.h"
#include "optim/step/gradient_change.h"
#include "optim/step/gradient_sources.h"

namespace farandole {

/// What a step does with the pieces that this rank owns, in host memory (HostShardPass) or on an
/// accelerator (DeviceShardPass): first make() or the add functions say which pieces, then others
/// work on all of them.
///
/// Threads: one call at a time. Streams: the current one.
class ShardPass {
 public:
  virtual ~ShardPass();

  /// This rank's pieces of the parameters that have gradients. `rules`: of each parameter group, or
  /// none: then there are gradients, parameters and master weights alone. `changes`: of gradients;
  /// lives longer.
  virtual void make(const UpdateRules& rules, const GradientSources& gradients,
                    const std::vector<GradientChange>& changes) = 0;
  /// Also the gradients of parameters that no rank owns yet, whole.
  virtual void add_newly_trainable(const GradientSources& gradients,
                                   const std::vector<GradientChange>& changes) = 0;
  /// Also this gradient alone, which is dense.
  virtual void add_gradient(const at::Tensor& gradient,
                            const std::vector<GradientChange>& changes) = 0;
  virtual void clear() = 0;

  /// Call before what may fail before share_sums().
  virtual void reset_sums() = 0;
  /// Lets the rules measure their sums.
  virtual void measure() = 0;
  /// Adds up what was measured on all ranks, for the rules. `has_failed`: on this rank. False if a
  /// rank has failed. Collective.
  virtual bool share_sums(bool has_failed) = 0;
  /// Lets the rules update the pieces, and stores them.
  virtual void update() = 0;
  /// Writes the averaged gradients to `to`, one tensor each in the type that rules compute in, and
  /// refreshes master weights.
  virtual void collect(const std::vector<at::Tensor>& to) = 0;
  /// Stores the parameters, or their rounded master weights.
  virtual void store() = 0;

  /// Whether all gradients are finite, and in host memory sums of `terms` of them. The host waits
  /// for an accelerator, once.
  virtual bool are_gradients_finite(size_t terms) = 0;
  /// What the averaged gradients add to their norm (see norm_kernels.h): a scalar of float64 on
  /// their device, for which the host does not wait.
  virtual at::Tensor norm_term_of_gradients(double power) = 0;
};

/// For the device of the layout's parameters. Both live longer.
std::unique_ptr<ShardPass> make_shard_pass(const ShardLayout& layout, const ShardRanks& ranks);

}  // namespace farandole
