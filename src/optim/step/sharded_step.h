// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <unordered_map>
#include <vector>

#include "farandole/optim/sharded_optimizer.h"
#include "optim/shards/shard_layout.h"
#include "optim/shards/shard_ranks.h"
#include "optim/step/gradient_sources.h"
#include "optim/step/shard_pass.h"
#include "optim/step/step_round.h"

namespace at {
struct RecordFunction;
}

namespace farandole {

/// The steps of a ShardedOptimizer: enter with all ranks, update and store what this rank owns,
/// leave with all ranks. Comments of public functions are in sharded_optimizer.h.
///
/// Threads: one call at a time.
class ShardedStep {
 public:
  /// Both live longer.
  ShardedStep(ShardLayout& layout, const ShardRanks& ranks);
  ~ShardedStep();

  /// Where gradients come from, after the ranks or the DistributedDataParallel have changed.
  /// `are_scattered`: they are sums that travelled during backward.
  void set_sources(std::unique_ptr<GradientSources> sources, bool are_scattered);
  /// The ranks and parameters as they are, before a step. Local.
  std::unique_ptr<StepRound> make_round() const;
  /// Uses the round from now on, and returns the one before.
  std::unique_ptr<StepRound> set_round(std::unique_ptr<StepRound> round);
  /// Whether the values of parameters are known to be the same on all ranks; otherwise the next
  /// step compares them.
  void set_values_known(bool are_known) { are_values_known_ = are_known; }

  void step(const UpdateRules& rules);
  /// False if the step is over, because it was left out.
  bool begin(const std::string& description);
  void end();
  void fail(const std::string& error) noexcept;
  void expect_scaled(const ScaledStep& scaled);
  void expect_plain() { scaled_.reset(); }
  bool was_left_out() const { return was_left_out_; }
  bool unscale(double factor);
  void set_arrival(ParameterArrival arrival) { arrival_ = arrival; }
  void wait();
  void wait_for(const std::vector<at::Tensor>& parameters);
  bool is_sending() const { return !works_.empty(); }
  /// As wait(), whatever has failed.
  void finish_transfers() noexcept;

  /// The next step changes averaged gradients like this, after the changes before it.
  void add_change(const GradientChange& change) { changes_.push_back(change); }
  /// A backward adds to gradients that were changed, but for what is still to be done to them.
  void before_backward();
  /// What the averaged gradients of all parameters add up to for a norm (see norm_kernels.h): a
  /// scalar of float64 on their device, for which the host does not wait. Collective.
  at::Tensor average_norm_term(double norm_type);

 private:
  at::Tensor joined_on_device(const at::Tensor& own, at::Tensor all, double norm_type) const;
  void begin_record();
  bool enter(const std::function<std::string()>& describe);
  /// Throws NotSupported while a graph captures the current stream.
  void check_not_captured() const;
  StepReport report_of(const std::string& description, const std::optional<ScaledStep>& scaled);
  void within_step(const std::function<void()>& work);
  void prepare();
  void plan_newly_trainable();
  void check_rules(const UpdateRules& rules) const;
  bool measure(const UpdateRules& rules);
  void forget_scale();
  void make_gradient_pieces();
  bool averages_in_step() const;
  bool own_gradients_are_finite();
  void collect_gradients();
  void count_step();
  void leave();
  void send_shards();
  void wait_until(size_t works);

  ShardLayout& layout_;
  const ShardRanks& ranks_;
  std::unique_ptr<StepRound> round_;
  std::unique_ptr<GradientSources> sources_;
  bool are_scattered_ = false;
  std::unique_ptr<ShardPass> pass_;
  std::vector<GradientChange> changes_;  ///< of averaged gradients, before they are used
  std::optional<ScaledStep> scaled_;     ///< what the next step is
  bool was_left_out_ = false;
  size_t kept_changes_ = 0;        ///< of changes_: those before this step added one of its own
  bool others_may_store_ = false;  ///< ranks are past what they do before they change anything
  bool are_values_known_ = false;
  std::unique_ptr<at::RecordFunction> record_;  ///< of the current step, for a profiler
  ParameterArrival arrival_ = ParameterArrival::kStep;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;  ///< shards in transfer, in that order
  size_t arrived_ = 0;                                 ///< of works_
  /// How many of works_ are to be waited for before a parameter is read.
  std::unordered_map<const c10::TensorImpl*, size_t> needed_;
};

}  // namespace farandole
