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
#include "farandole/optim/half_options.h"
#include "farandole/optim/shard_plan.h"
#include "farandole/optim/update_rule.h"

namespace at {
struct RecordFunction;
}

namespace farandole {

class FlatParameters;
class GradientScatter;
class GradientSources;
class ShardState;
class ShardTensors;
class StepRound;
class UpdatePass;
struct GradientChange;
struct PieceUpdate;

/// What p.grad is between backward and step().
enum class GradientMode {
  kFull,   ///< the average on every rank: whoever averages it, DistributedDataParallel for one
  kShard,  ///< this rank's own gradient: the optimizer averages what it owns. All parameters belong
           ///< to one DistributedDataParallel
};

/// What a GradScaler asks of a step.
struct ScaledStep {
  double scale = 1;   ///< which ranks compare
  double factor = 1;  ///< on averaged gradients; 1 if they are unscaled already
  /// Whether this rank's gradients have no Inf or NaN; nullopt: the step looks.
  std::optional<bool> is_finite = {};
};

/// ZeRO stage 1 (Rajbhandari et al. 2020, arXiv 1910.02054): each rank keeps the optimizer state of
/// its shards of the parameters (shard_plan.h), updates those, and stores the new values into all
/// ranks. What C++ and Python optimizers have in common; it knows tensors alone.
///
/// Parameters become views of flat buffers (with their values, dtypes and strides). Where ranks
/// share memory, step() goes over it once and needs no message: update and store are one pass, with
/// kShard averaging too. Over other groups shards travel by reduce_scatter during backward (with a
/// wire_dtype of the DistributedDataParallel by all_to_all, see gradient_scatter.h) and by
/// all_gather after step(), which the next forward of the DistributedDataParallel awaits.
///
/// A profiler sees a step as "farandole:sharded_step". It is either step(), with rules that run
/// here, or begin_step(), whatever changes the tensors of shards(), and end_step(). No parameter is
/// stored before every rank has entered the step, and none returns before all stores are seen
/// (where they travel: wait()).
///
/// Parameters that have requires_grad are planned when they come; others when they first have a
/// gradient in a step. Parameters of half types have float32 values of their own on the rank that
/// owns them, which steps are added to, unless HalfOptions say otherwise.
///
/// Errors: StepError (step_round.h), InvalidArgument, NotSupported (sparse gradients), and what
/// collectives throw. Threads: one call at a time, not in a backward. It may outlive the
/// DistributedDataParallel.
class FARANDOLE_API ShardedOptimizer {
 public:
  struct Group {
    std::vector<at::Tensor> parameters;
    std::vector<std::string> names;  ///< for messages
  };
  /// A part of a parameter that this rank owns.
  struct Piece {
    size_t parameter;  ///< index in its group
    int64_t offset;    ///< elements from its start, in the order of its memory
    int64_t elements;
  };

  /// `groups`: the same on every rank, with the same values by the first step. `group`: the ranks;
  /// those of the parameters' DistributedDataParallel, or the default group, if empty. Collective.
  ShardedOptimizer(std::vector<Group> groups, const farandole::Group& group, GradientMode mode,
                   const HalfOptions& halves = {}, Partition partition = Partition::kElements);
  ~ShardedOptimizer();
  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  /// One more parameter group, in which `then`, if there is one, takes part: if either fails on any
  /// rank, both throw and nothing has changed on all (joint_change.h). Collective.
  void add_group(Group group, const std::function<void()>& then = {});

  /// One step, with a rule for each group. Collective.
  void step(const UpdateRules& rules);
  /// Begins one whose formula is elsewhere: `description` tells its hyperparameters, which ranks
  /// compare. Sets the gradients of shards(), undefined ones where a parameter has none. True if
  /// shards() has others than when it was last called. If was_left_out() then, the step is over.
  /// Throws InvalidArgument without master weights. Collective.
  bool begin_step(const std::string& description);
  /// Stores shards() into all ranks. Collective.
  void end_step();
  /// Instead of either, or of step(): this rank has met `error`, which the others throw as a
  /// StepError. Does not throw. Collective.
  void fail_step(const std::string& error) noexcept;
  /// The next step, however it ends, is one of scaled gradients: multiplies them by a factor where
  /// it reads them, and is left out on all ranks if one has an Inf or NaN on any. Local.
  void expect_scaled(const ScaledStep& scaled);
  /// Takes that back.
  void expect_plain() { scaled_.reset(); }
  /// Whether the last step was: then nothing was changed. The same on every rank.
  bool was_left_out() const { return was_left_out_; }
  /// With kShard: clips and the next step take averaged gradients times `factor`. Whether this
  /// rank's part of them has no Inf or NaN. Local.
  bool unscale(double factor);
  /// Whether all ranks say so. Collective.
  bool all_agree(bool yes) const;
  /// Returns when the parameters of the last step have come. Local.
  void wait();

  /// Makes the norm of all averaged gradients together at most `max_norm`, as
  /// torch.nn.utils.clip_grad_norm_ does, and returns what it was. With kShard the gradients are
  /// left as they are, and the factor is applied in the next step, or before the next backward adds
  /// to them. `norm_type` > 0, or infinite. Collective.
  double clip_grad_norm(double max_norm, double norm_type, bool error_if_nonfinite);
  /// Brings every element of the averaged gradients into [-clip_value, clip_value]. With kShard: in
  /// the next step, and no backward may come before it.
  void clip_grad_value(double clip_value);

  /// This rank's pieces of `group`.
  std::vector<Piece> pieces(size_t group) const;
  /// The same as tensors of one dimension, or with kParameters of the parameters' shapes; in the
  /// memory of the parameters, or of the float32 values of those of half types. Throws
  /// InvalidArgument without master weights.
  std::vector<at::Tensor> shards(size_t group);

  /// Makes the arrays that step() with these rules needs, zeros, where they are not there yet.
  void make_state(const UpdateRules& rules);
  /// One of those arrays, by piece of `group`; empty if it was not made. "master_parameter": the
  /// float32 values of parameters of half types, if it keeps them.
  std::vector<at::Tensor> state(size_t group, const std::string& name) const;
  /// Steps with a gradient that step() has taken, by parameter of `group`.
  std::vector<int64_t> steps(size_t group) const;
  /// Whether each parameter has shards: those that were frozen get them in a step with a gradient.
  std::vector<bool> are_planned(size_t group) const;
  /// `has_state`: whether a step has written to their arrays; by default those with steps.
  void set_steps(size_t group, const std::vector<int64_t>& steps,
                 const std::vector<bool>& has_state = {});
  /// Bytes of this rank's arrays.
  int64_t state_bytes() const;
  /// Bytes that this rank gives to others in a backward and a step with kShard, padding included:
  /// (world_size - 1) / world_size of the gradients, as they travel (ReplicaOptions::wire_dtype),
  /// and as much of the parameters. kFull: as much of the gradients again, for averages on every
  /// rank.
  int64_t bytes_moved() const;

  /// Whole tensors, in the shapes of the parameters of `group`, of what ranks have by piece:
  /// tensors of one dimension and one dtype. On rank `to`, or on all if it is -1; else empty.
  /// Collective.
  std::vector<at::Tensor> gather(size_t group, const std::vector<at::Tensor>& pieces, int to) const;
  /// From rank `root`, in place. Collective.
  void broadcast(const at::Tensor& tensor, int root) const;
  /// A text of every rank. Collective.
  std::vector<std::string> all_gather(const std::string& text) const;

  /// From now on gather() runs over the ranks of `group` (empty: those of the
  /// DistributedDataParallel, or the present ones), which bring the shards that they have. Throws
  /// InvalidArgument on all if some are lost. Collective for them.
  void begin_rebuild(const farandole::Group& group);
  /// Plans anew for those ranks and brings state and parameters there; `then` as in add_group().
  /// What fails leaves the optimizer as it was before begin_rebuild(). Collective.
  void finish_rebuild(const std::function<void()>& then = {});

  int rank() const { return group_->rank(); }
  int world_size() const { return group_->world_size(); }
  /// The one that the program gave.
  const farandole::Group& group() const { return group_->of_program(); }
  GradientMode mode() const { return mode_; }
  const HalfOptions& halves() const { return halves_; }
  Partition partition() const { return partition_; }

 private:
  struct Parameter {
    at::Tensor tensor;
    std::string name;
    size_t group;
    size_t index;  ///< in its group
    /// Of parts_, and which parameter of that; none before it is planned.
    size_t part = kNone;
    size_t index_in_part = 0;
    int64_t steps = 0;
    bool has_state = false;  ///< a step has written to its arrays
  };
  static constexpr size_t kNone = static_cast<size_t>(-1);
  /// Parameters that were planned together.
  struct Part {
    std::vector<size_t> parameters;  ///< indices into parameters_
    std::unique_ptr<FlatParameters> flat;
    std::unique_ptr<ShardState> state;
    std::unique_ptr<ShardTensors> tensors;  ///< null unless asked for
    bool has_masters = false;               ///< of parameters of half types
  };

  // sharded_optimizer.cpp
  void add_parameters(Group group);
  void check_group_index(size_t group) const;
  void find_replica();
  Replica* replica() const;       ///< null if there is none, or no more
  bool averages_in_step() const;  ///< p.grad is this rank's own until then
  void choose_group(const farandole::Group& group);
  void check_replica() const;
  void check_same_parameters(bool with_values) const;
  uint64_t hash_of_parameters(bool with_values) const;
  std::vector<int64_t> loads() const;
  void plan(const std::vector<size_t>& indices);
  void plan_active();
  void attach();
  BucketPlan plan_for_reducer(BucketPlan plan) const;
  void detach() noexcept;
  std::unique_ptr<StepRound> make_round(uint64_t step) const;
  void for_each_piece(
      size_t group, const std::function<void(const Part&, size_t, const ShardPiece&)>& call) const;

  // sharded_step.cpp
  void begin_record();
  bool enter(const std::function<std::string()>& describe);
  void within_step(const std::function<void()>& work);
  void prepare();
  void plan_newcomers();
  void plan_added(size_t first);
  void drop_groups(size_t groups, size_t parts) noexcept;
  void check_rules(const UpdateRules& rules) const;
  void check_norm(double max_norm, double norm_type) const;
  bool measure(const UpdateRules& rules);
  void make_updates(const UpdateRules& rules);
  void add_newcomers();
  void set_addresses();
  bool own_gradients_are_finite();
  void collect_gradients();
  bool share_sums(bool has_failed);
  std::vector<double> all_gather_numbers(const std::vector<double>& numbers) const;
  void count_step();
  void leave();
  void send_shards();
  void before_backward();
  double average_norm_term(double norm_type);

  // sharded_state.cpp
  void make_masters();
  static void make_masters(Part& part);
  void make_shard_tensors();
  at::ScalarType common_dtype(const std::vector<at::Tensor>& pieces) const;
  at::Tensor gather_bucket(const ShardPlan& plan, size_t bucket, const at::Tensor& shard,
                           int to) const;
  at::Tensor broadcast_shards(const ShardPlan& plan, size_t bucket, const at::Tensor& shard,
                              int to) const;
  void forget_rebuild();
  struct Plan;
  Plan take_plan();
  void put_back(Plan before) noexcept;
  void plan_anew();
  void make_arrays_of(const Part& old);
  void make_array(size_t index, const std::string& name);
  void move_state(const Part& old);
  void take_state(size_t index, const std::string& name, const at::Tensor& state);

  const GradientMode mode_;
  const HalfOptions halves_;
  const Partition partition_;
  std::vector<Parameter> parameters_;
  std::vector<at::Tensor> tensors_;          ///< of the same
  std::vector<std::string> names_;           ///< likewise
  std::vector<std::vector<size_t>> groups_;  ///< indices into parameters_, by parameter group
  std::shared_ptr<ReplicaLink> replica_;     ///< null if the parameters are not all of one
  std::shared_ptr<ReplicaGroup> group_;
  std::vector<Part> parts_;
  std::unique_ptr<StepRound> round_;
  std::unique_ptr<GradientSources> gradients_;
  std::shared_ptr<GradientScatter> scatter_;  ///< null where memory is shared, and with kFull
  std::unique_ptr<UpdatePass> pass_;
  std::unique_ptr<std::vector<PieceUpdate>> updates_;
  std::unique_ptr<std::vector<GradientChange>> changes_;
  std::vector<const void*> addresses_;  ///< that updates_ points to
  std::vector<double> sums_;            ///< kMostSums a parameter
  std::optional<ScaledStep> scaled_;    ///< what the next step is
  bool was_left_out_ = false;
  bool are_values_known_ = false;               ///< to be the same on all ranks
  std::unique_ptr<at::RecordFunction> record_;  ///< of the step that is under way, for a profiler
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;  ///< shards under way
  size_t parts_shown_ = 0;                             ///< by shards()
  std::shared_ptr<ReplicaGroup> previous_group_;       ///< in a rebuild
  std::vector<int> owners_;  ///< in a rebuild: who has shard r of the old ranks; -1: nobody
};

}  // namespace farandole
