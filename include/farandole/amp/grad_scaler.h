// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "farandole/export.h"

namespace farandole {

class ShardedOptimizer;

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;     ///< on the scale after growth_interval steps without Inf or NaN
  double backoff_factor = 0.5;  ///< on the scale after a step with one
  int64_t growth_interval = 2000;
  bool enabled = true;  ///< if false, scale() and update() do nothing; step() calls the optimizer's
};

/// The state of a GradScaler in a checkpoint.
struct GradScalerState {
  double scale;
  double growth_factor;
  double backoff_factor;
  int64_t growth_interval;
  int64_t growth_tracker;  ///< steps without Inf or NaN since the scale changed
};

/// An optimizer for a GradScaler.
struct ScaledOptimizer {
  const void* id;                      ///< identifies it, unique until update()
  std::vector<at::Tensor> parameters;  ///< all of its groups
  ShardedOptimizer* engine = nullptr;  ///< of a ZeroRedundancyOptimizer
};

/// Loss scaling for training in float16 (Micikevicius et al. 2018, arXiv 1710.03740): multiplies
/// the loss so that small gradients do not vanish, divides gradients before the step, and skips the
/// step if a gradient has an Inf or NaN. torch.amp.GradScaler for C++.
///
///   farandole::GradScaler scaler;
///   scaler.scale(loss).backward();
///   scaler.step(optimizer);  // optimizer.step(), unless a gradient is Inf or NaN on some rank
///   scaler.update();
///   optimizer.zero_grad();
///
/// All ranks agree: a step is taken on every rank or on none, whether gradients are averages,
/// sharded, or of parameters outside of a DistributedDataParallel; so every rank keeps the same
/// scale. With a ZeroRedundancyOptimizer this costs no message and hardly a pass over memory: each
/// rank checks its own shards, reports the result in the exchange that opens the step, and
/// gradients are divided when the step reads them. p.grad then stays scaled; unscale_() divides it
/// in place.
///
/// The scale is a float32, as in torch. Gradients on the CPU take one pass of our own kernel,
/// others use torch's. Sparse gradients are divided in their values.
///
/// Errors: InvalidArgument for calls out of order and for float16 gradients in unscale_(), whose
/// small elements would vanish (step() takes them with a ZeroRedundancyOptimizer); otherwise what
/// collectives and the optimizer throw. Threads: one call at a time, not during a backward.
/// unscale_() and step() are collective for the parameters of a ZeroRedundancyOptimizer or a
/// DistributedDataParallel.
class FARANDOLE_API GradScaler {
 public:
  /// Throws InvalidArgument unless growth_factor > 1, backoff_factor < 1, growth_interval > 0 and
  /// init_scale > 0.
  explicit GradScaler(const GradScalerOptions& options = {});

  /// output * scale, for one loss or several.
  at::Tensor scale(const at::Tensor& output);
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& outputs);

  /// Divides gradients by the scale before step() would, to clip or inspect them. Once for each
  /// step. With GradientMode::kShard they are divided when the optimizer clips or steps.
  void unscale_(torch::optim::Optimizer& optimizer);
  /// optimizer.step() with divided gradients, once for each update(). False if the step was
  /// skipped.
  bool step(torch::optim::Optimizer& optimizer);
  /// Lowers or raises the scale according to the steps since the last call, or sets it.
  void update(std::optional<double> new_scale = {});

  /// 1 if it is not enabled.
  double get_scale() const;
  double get_growth_factor() const { return state_.growth_factor; }
  void set_growth_factor(double factor) { state_.growth_factor = factor; }
  double get_backoff_factor() const { return state_.backoff_factor; }
  void set_backoff_factor(double factor) { state_.backoff_factor = factor; }
  int64_t get_growth_interval() const { return state_.growth_interval; }
  void set_growth_interval(int64_t interval) { state_.growth_interval = interval; }
  bool is_enabled() const { return enabled_; }

  /// Between update() and scale().
  GradScalerState state() const { return state_; }
  void load_state(const GradScalerState& state) { state_ = state; }
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

  /// The parts of unscale_() and step() for optimizers in any language.
  void unscale_(const ScaledOptimizer& optimizer);
  /// Whether to step the optimizer; an optimizer with an engine skips the step itself.
  bool begin_step(const ScaledOptimizer& optimizer);
  /// Call after the step: whether it was taken.
  bool end_step(const void* id);
  /// Call instead if the optimizer threw. The step may be repeated.
  void abandon_step(const void* id);
  /// Whether there was no unscale_() or step() since the last update().
  bool is_between_steps() const { return checks_.empty(); }

 private:
  enum class Stage { kReady, kUnscaled, kStepped };
  /// Of an optimizer since the last update().
  struct Check {
    const void* id;
    Stage stage = Stage::kReady;
    /// On all ranks; of gradients that an engine has, on this one until the step has ended.
    std::optional<bool> is_finite = {};
    ShardedOptimizer* engine = nullptr;
    bool are_dropped = false;  ///< gradients, for an Inf or NaN
  };
  Check& check_of(const void* id);
  void check_scaled(const char* call) const;
  double inverse_scale() const;

  bool enabled_;
  bool has_scaled_ = false;
  GradScalerState state_;
  std::vector<Check> checks_;  ///< in the order of first use, which ranks have in common
};

/// For torch::save() and torch::load().
FARANDOLE_API torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                                          const GradScaler& scaler);
FARANDOLE_API torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                                         GradScaler& scaler);

}  // namespace farandole
