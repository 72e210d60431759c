// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "optim/step/shard_pass.h"
#include "optim/step/step_pass.h"
#include "optim/step/step_pieces.h"

namespace farandole {

/// Loops over blocks in host memory: see step_pass.h. Comments are in shard_pass.h.
class HostShardPass final : public ShardPass {
 public:
  HostShardPass(const ShardLayout& layout, const ShardRanks& ranks) : pieces_(layout, ranks) {}

  void make(const UpdateRules& rules, const GradientSources& gradients,
            const std::vector<GradientChange>& changes) override {
    pieces_.make(rules, gradients, changes);
  }
  void add_newly_trainable(const GradientSources& gradients,
                           const std::vector<GradientChange>& changes) override {
    pieces_.add_newly_trainable(gradients, changes);
  }
  void add_gradient(const at::Tensor& gradient,
                    const std::vector<GradientChange>& changes) override {
    pieces_.add_gradient(gradient, changes);
  }
  void clear() override { pieces_.clear(); }

  void reset_sums() override { pieces_.reset_sums(); }
  void measure() override { pass_.measure(pieces_.complete()); }
  bool share_sums(bool has_failed) override { return pieces_.share_sums(has_failed); }
  void update() override { pass_.update(pieces_.complete()); }
  void collect(const std::vector<at::Tensor>& to) override;
  void store() override { pass_.store(pieces_.complete()); }

  bool are_gradients_finite(size_t terms) override {
    return pass_.are_gradients_finite(pieces_.complete(), terms);
  }
  at::Tensor norm_term_of_gradients(double power) override;

 private:
  StepPieces pieces_;
  StepPass pass_;
};

}  // namespace farandole
