// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "farandole/ddp/replica.h"
#include "farandole/export.h"
#include "farandole/optim/master_weight_options.h"
#include "farandole/optim/shard_plan.h"
#include "farandole/optim/update_rule.h"

namespace farandole {

class GradientScatter;
class ShardLayout;
class ShardRanks;
class ShardedStep;

/// The contents of p.grad between backward and step().
enum class GradientMode {
  kFull,   ///< the average on every rank, computed by a DistributedDataParallel or the program
  kShard,  ///< this rank's own gradient; the optimizer averages the part that it owns. All
           ///< parameters belong to one DistributedDataParallel
};

/// Among which ranks the parameters and the state are divided.
enum class ShardOver {
  kWorld,  ///< all: the least memory
  kHost,   ///< those of each host, and every host has all: new parameters never leave their host.
           ///< Hosts have the same number of ranks and CPUs with the same instructions
};

/// When new parameters have come from other ranks, where ranks do not share memory. All but kStep
/// need a DistributedDataParallel that has the parameters and this optimizer's ranks.
enum class ParameterArrival {
  kStep,     ///< when step() returns
  kForward,  ///< in the next forward of the DistributedDataParallel, which waits for them
  kCaller,   ///< the caller waits for those that it reads: wait_for()
};

/// What a GradScaler passes to a step.
struct ScaledStep {
  double scale = 1;   ///< compared among the ranks
  double factor = 1;  ///< on averaged gradients; 1 if they are unscaled already
  /// Whether this rank's gradients are finite; nullopt: the step checks.
  std::optional<bool> is_finite = {};
};

/// ZeRO stage 1 (Rajbhandari et al. 2020, arXiv 1910.02054): each rank keeps the optimizer state of
/// its shards of the parameters (shard_plan.h), updates these shards, and stores the new values
/// into all ranks. The common core of the C++ and Python optimizers; it works on tensors.
///
/// Parameters become views of flat buffers (with their values, dtypes and strides). If ranks share
/// memory, step() makes one pass over it and needs no message: update and store are one pass, with
/// kShard averaging too. Over other groups shards are sent by reduce_scatter during backward (with
/// a wire_dtype of the DistributedDataParallel by all_to_all, see gradient_scatter.h) and by
/// all_gather at the end of step(), or afterwards (ParameterArrival).
///
/// A profiler shows a step as "farandole:sharded_step". A step is either step(), with rules that
/// run here, or begin_step(), any change of the tensors of shards(), and end_step(). No parameter
/// is stored before every rank has entered the step, and no rank returns before all stores are
/// visible.
///
/// Parameters with requires_grad get shards when they are added; others in the first step in which
/// they have a gradient. Parameters of half types have float32 master weights on the rank that owns
/// them, unless MasterWeightOptions disable this.
///
/// Errors: StepError (step_round.h), InvalidArgument, NotSupported (sparse gradients), and what
/// collectives throw. Threads: one call at a time, not during a backward. It may outlive the
/// DistributedDataParallel.
class FARANDOLE_API ShardedOptimizer {
 public:
  struct ParameterGroup {
    std::vector<at::Tensor> parameters;
    std::vector<std::string> names;  ///< for messages
  };
  /// A part of a parameter that this rank owns.
  struct Piece {
    size_t parameter;  ///< index in its group
    int64_t offset;    ///< elements from its start, in the order of its memory
    int64_t elements;
  };

  /// `groups`: the same on every rank, with equal values by the first step. `group`: the ranks; if
  /// empty, those of the parameters' DistributedDataParallel, or the default group. kHost needs a
  /// group of our own backend and kFull. Collective.
  ShardedOptimizer(std::vector<ParameterGroup> groups, const farandole::Group& group,
                   GradientMode mode, const MasterWeightOptions& master_weights = {},
                   Partition partition = Partition::kElements,
                   ShardOver shard_over = ShardOver::kWorld);
  ~ShardedOptimizer();
  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  /// Adds a parameter group and calls `then`, if given. If either fails on any rank, the call
  /// throws on all ranks and nothing has changed (joint_change.h). Collective.
  void add_group(ParameterGroup group, const std::function<void()>& then = {});

  /// One step, with a rule for each group. Collective.
  void step(const UpdateRules& rules);
  /// Begins a step that the caller computes. `description` has its hyperparameters, which ranks
  /// compare. Sets the gradients of shards(), undefined if a parameter has none. True if the
  /// tensors of shards() have changed since its last call. If was_left_out() is true afterwards,
  /// the step is over. Throws InvalidArgument without master weights. Collective.
  bool begin_step(const std::string& description);
  /// Stores shards() into all ranks. Collective.
  void end_step();
  /// Call it instead of begin_step(), end_step() or step() if this rank has failed with `error`,
  /// which the other ranks throw as a StepError. Does not throw. Collective.
  void fail_step(const std::string& error) noexcept;
  /// The next step has scaled gradients: it multiplies them by a factor when it reads them, and is
  /// left out on all ranks if a gradient has an Inf or NaN on any rank. Local.
  void expect_scaled(const ScaledStep& scaled);
  /// Cancels expect_scaled().
  void expect_plain();
  /// Whether the last step was left out: nothing was changed. The same on every rank.
  bool was_left_out() const;
  /// Replica::join_failed() of the DistributedDataParallel that has the parameters; false if there
  /// is none. Local.
  bool join_failed() const;
  /// With kShard: multiplies averaged gradients by `factor` in clips and in the next step. Returns
  /// whether this rank's part of them is finite. Local.
  bool unscale(double factor);
  /// Whether `yes` is true on all ranks. Collective.
  bool all_agree(bool yes) const;
  /// Whether steps send new parameters to other ranks, which do not share memory with this one.
  bool sends_parameters() const;
  /// From the next step on. Local; ranks may differ.
  void set_arrival(ParameterArrival arrival);
  /// Returns when all parameters have arrived. Throws what collectives throw. Local.
  void wait();
  /// Returns when these parameters have arrived. Local.
  void wait_for(const std::vector<at::Tensor>& parameters);
  /// Whether parameters are on their way for which nobody has waited.
  bool is_sending() const;

  /// Limits the total norm of all averaged gradients to `max_norm`, as
  /// torch.nn.utils.clip_grad_norm_ does, and returns the norm before. With kShard the gradients
  /// are not changed; the factor is applied in the next step, or before the next backward adds to
  /// them. `norm_type` > 0, or infinite. Collective.
  double clip_grad_norm(double max_norm, double norm_type, bool error_if_nonfinite);
  /// The same, with the norm as a scalar of float64 on the parameters' device. The host does not
  /// wait for an accelerator, except with `error_if_nonfinite`.
  at::Tensor clip_grad_norm_tensor(double max_norm, double norm_type, bool error_if_nonfinite);
  /// Limits every element of the averaged gradients to [-clip_value, clip_value]. With kShard this
  /// happens in the next step, and no backward may come before it.
  void clip_grad_value(double clip_value);

  /// This rank's pieces of `group`.
  std::vector<Piece> pieces(size_t group) const;
  /// The same as one-dimensional tensors, or with kParameters in the shapes of the parameters. They
  /// share the memory of the parameters, or of the master weights of parameters of half types.
  /// Throws InvalidArgument without master weights.
  std::vector<at::Tensor> shards(size_t group);

  /// Makes the state arrays that step() with these rules needs, as zeros, if they do not exist yet.
  void make_state(const UpdateRules& rules);
  /// One of these arrays, by piece of `group`; empty if it does not exist. "master_parameter": the
  /// float32 master weights, if kept.
  std::vector<at::Tensor> state(size_t group, const std::string& name) const;
  /// Number of steps with a gradient, by parameter of `group`.
  std::vector<int64_t> steps(size_t group) const;
  /// Whether each parameter has shards: frozen parameters get them in a step with a gradient.
  std::vector<bool> are_planned(size_t group) const;
  /// `has_state`: whether a step has written to their arrays; by default true if steps > 0.
  void set_steps(size_t group, const std::vector<int64_t>& steps,
                 const std::vector<bool>& has_state = {});
  /// Bytes of this rank's state arrays.
  int64_t state_bytes() const;
  /// Bytes that this rank sends to or stores into other ranks in a backward and a step with kShard,
  /// with padding: (world_size - 1) / world_size of the gradients, in the type in which they are
  /// sent (ReplicaOptions::wire_dtype), and of the parameters. kFull: the gradients count twice,
  /// because every rank gets all averages.
  int64_t bytes_moved() const;

  /// Assembles tensors in the shapes of the parameters of `group` from the pieces of all ranks,
  /// which are one-dimensional and of one dtype. On shard_rank() `to`, in host memory, or on all
  /// ranks if it is -1; empty on the others. If a rank fails, as without memory, all throw: it its
  /// own error, the others a StepError. Collective for the ranks that share shards, as the next
  /// two.
  std::vector<at::Tensor> gather(size_t group, const std::vector<at::Tensor>& pieces, int to) const;
  /// From shard_rank() `root`, in place.
  void broadcast(const at::Tensor& tensor, int root) const;
  /// A text of every rank that shares shards with this one, by shard_rank().
  std::vector<std::string> all_gather(const std::string& text) const;

  /// From now on gather() runs over the ranks of `group` (empty: those of the
  /// DistributedDataParallel, or the current ones), which contribute the shards that they have.
  /// Throws InvalidArgument on all ranks if a shard is lost. Collective for them.
  void begin_rebuild(const farandole::Group& group);
  /// Makes a plan for these ranks and moves state and parameters there; `then` as in add_group().
  /// If it fails, the optimizer is as before begin_rebuild(). Collective.
  void finish_rebuild(const std::function<void()>& then = {});

  int rank() const;
  int world_size() const;
  /// This rank among those that share shards with it: rank(), or its number on its host.
  int shard_rank() const;
  /// shard_rank() of `rank`; nullopt if it shares no shards with this one.
  std::optional<int> shard_rank_of(int rank) const;
  /// The one that the program gave.
  const farandole::Group& group() const;
  GradientMode mode() const;
  const MasterWeightOptions& master_weights() const;
  Partition partition() const;

 private:
  void attach();
  void detach() noexcept;
  BucketPlan plan_for_reducer(BucketPlan plan) const;
  void plan_added(size_t first);

  const std::unique_ptr<ShardLayout> layout_;
  const std::unique_ptr<ShardRanks> ranks_;
  const std::unique_ptr<ShardedStep> step_;
  ParameterArrival arrival_ = ParameterArrival::kStep;
  std::shared_ptr<GradientScatter> scatter_;  ///< null where memory is shared, and with kFull
  size_t parts_shown_ = 0;                    ///< by shards()
};

}  // namespace farandole
