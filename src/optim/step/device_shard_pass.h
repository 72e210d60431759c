// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "farandole/optim/device_update_rule.h"
#include "optim/device/kernel_launches.h"
#include "optim/step/shard_pass.h"
#include "optim/step/stochastic_rounding.h"

namespace farandole {

/// On an accelerator's current stream, for lists of pieces that are alike: Farandole's kernels
/// (optim/device) where they know the device and the rule, else operations of torch. Comments are
/// in shard_pass.h.
///
/// New parameters are in this rank's shard alone; they travel to other ranks afterwards. The host
/// waits for the device where it is asked for a number, and nowhere else. Memory during a step,
/// beyond the state, where torch's operations run: in the type that rules compute in, the gradients
/// of pieces whose gradients are changed or have a half type, and the parameters of those without
/// master weights.
class DeviceShardPass final : public ShardPass {
 public:
  DeviceShardPass(const ShardLayout& layout, const ShardRanks& ranks);

  void make(const UpdateRules& rules, const GradientSources& gradients,
            const std::vector<GradientChange>& changes) override;
  void add_newly_trainable(const GradientSources& gradients,
                           const std::vector<GradientChange>& changes) override;
  void add_gradient(const at::Tensor& gradient,
                    const std::vector<GradientChange>& changes) override;
  void clear() override { pieces_.clear(); }

  void reset_sums() override;
  void measure() override;
  bool share_sums(bool has_failed) override;
  void update() override;
  void collect(const std::vector<at::Tensor>& to) override;
  void store() override;

  bool are_gradients_finite(size_t terms) override;
  at::Tensor norm_term_of_gradients(double power) override;

 private:
  /// Tensors of one dimension; complex numbers are pairs of reals.
  struct Piece {
    size_t index = 0;      ///< of its parameter
    at::Tensor parameter;  ///< undefined if its gradient is alone
    at::Tensor master;     ///< of a half type, if there are master weights
    at::Tensor gradient;   ///< the sum over ranks
    double divisor = 1;    ///< of that
    std::vector<at::Tensor> states;
    const UpdateRule* rule = nullptr;
    StepContext context{};
    std::optional<StochasticRounding> rounding;
  };
  /// Indices of pieces that are alike.
  using Batch = std::vector<size_t>;
  struct RuleBatch {
    Batch pieces;
    std::shared_ptr<const RuleFormulas> formulas;  ///< of kernels; null: operations of torch
  };

  void add_rule(Piece& made, const UpdateRule& rule, const ShardLayout::Part& part,
                const ShardPiece& piece) const;
  std::vector<Batch> batches() const;
  std::vector<at::Tensor> averages(const Batch& batch) const;
  std::vector<at::Tensor> computed(const Batch& batch) const;
  DeviceUpdate lists(const Batch& batch) const;
  void add_sums(const Batch& batch, DeviceUpdate& pieces) const;
  void refresh_masters() const;
  std::shared_ptr<const RuleFormulas> formulas_of(const Batch& batch) const;
  std::vector<RuleBatch> rule_batches() const;
  void launch(const Batch& batch, KernelLaunches::Kind kind, const RuleFormulas& formulas) const;
  void round(const Batch& batch, const std::vector<at::Tensor>& computed) const;

  const ShardLayout& layout_;
  const ShardRanks& ranks_;
  const bool has_kernels_;
  std::vector<Piece> pieces_;
  const std::vector<GradientChange>* changes_ = nullptr;
  at::Tensor total_;              ///< kMostSums a parameter, after share_sums() of all ranks
  std::vector<at::Tensor> sums_;  ///< its elements
};

}  // namespace farandole
