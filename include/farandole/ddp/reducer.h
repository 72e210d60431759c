// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <utility>
#include <vector>

#include "farandole/config.h"
#include "farandole/ddp/backward_stats.h"
#include "farandole/ddp/bucket.h"
#include "farandole/ddp/bucket_consumer.h"
#include "farandole/ddp/bucket_plan.h"
#include "farandole/ddp/replica_group.h"
#include "farandole/ddp/sharded_gradients.h"
#include "farandole/export.h"

namespace farandole {

class AllocationPredictor;
class AliasedSlot;
class KeptPlans;
struct ParameterKind;
class ParameterGradient;
struct BackwardReport;

/// Averages the gradients of a model over its replicas while backward runs.
///
/// The path of a gradient: a hook in front of autograd's node moves it into its slot in a bucket
/// (take). A hook behind the node counts it; when all gradients of a bucket have arrived, the
/// bucket is launched (launch). The end of backward (end_backward) waits for the remaining buckets.
/// p.grad is the slot from then on, so gradients exist once.
///
/// The first synchronized backward only counts which parameters get how many gradients (several
/// under activation checkpointing), and in which order. At its end the buckets are planned in the
/// order of rank 0, gradients move into them, and all buckets are reduced. Later backward passes
/// overlap. A parameter that changes its dtype, device or requires_grad makes the next synchronized
/// backward a first one again, unless a plan for the parameters in this state was kept
/// (ddp/kept_plans.h).
///
/// A backward is synchronized if its forward was (after_forward()). Otherwise its gradients stay
/// local and accumulate in the buckets. A hook on the outputs of the forward finds the end of the
/// backward, so inner backward passes of reentrant checkpointing do not end it. If an exception
/// leaves a backward, the backward is abandoned. This rank reports that before its next forward or
/// backward, and the other ranks get a BackwardError that names it instead of a timeout.
///
/// Threads: autograd's threads call the hooks, the caller's threads everything else; calls wait for
/// each other. Streams: gradients on a device are moved on its current stream.
class FARANDOLE_API Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  struct Parameter {
    std::string name;
    at::Tensor tensor;
    bool sparse = false;  ///< its gradients are sparse tensors (an embedding's)
  };
  struct Options {
    BucketCaps caps;
    /// A parameter without a gradient in a backward counts as zero. Otherwise it is an error.
    bool find_unused_parameters = false;
    /// Every backward has gradients of the same parameters as the first one. Buckets do not wait
    /// for the other parameters.
    bool static_graph = false;
    /// What happens if a gradient has an Inf or NaN; the same on every rank. Each gradient is
    /// checked after a pass has added to it, by reading it once more.
    NonfinitePolicy report_nonfinite = NonfinitePolicy::kOff;
    /// See ReplicaOptions.
    std::optional<at::ScalarType> wire_dtype = {};
    /// See ReplicaOptions::skip_all_reduce_unused_params.
    bool skip_unused_buckets = false;
    /// See Config.
    bool born_gradients = true;
  };

  /// `parameters`: the same on every rank, frozen ones included. Local.
  static std::shared_ptr<Reducer> make(std::vector<Parameter> parameters,
                                       std::shared_ptr<ReplicaGroup> group, Options options);
  ~Reducer();

  /// Call before a forward with gradients. Collective only if this rank has abandoned a backward.
  /// Throws InvalidArgument if gradients stayed local that seem to belong to the previous forward.
  void before_forward();
  /// Call after it: backward from `outputs` is synchronized if `synchronize`, otherwise local.
  void after_forward(const std::vector<at::Tensor>& outputs, bool synchronize);
  /// Call instead of after_forward() if the forward threw.
  void forward_failed();

  /// The number of items (tokens, samples) that the loss of the next backward passes is a mean
  /// over: gradients become sum(w * g) / sum(w) over ranks and accumulated passes. On all ranks or
  /// none; nullopt: no weights. Backward throws InvalidArgument if it would add to gradients
  /// without one.
  void set_loss_weight(std::optional<double> weight);
  /// Passes full buckets to `hook` (torch's interface) instead of averaging them; null: averages
  /// them again. Not during a backward. Throws InvalidArgument beside a wire_dtype. Collective.
  void set_hook(std::shared_ptr<c10d::CommHookInterface> hook);
  /// Leaves averaging to a sharded optimizer from the next backward on; nullopt: averages again.
  /// The next backward makes a new plan. Not during a backward. Local, unless a backward was
  /// abandoned.
  void set_sharded(std::optional<ShardedGradients> sharded);
  /// If an exception has left a backward, reports that to the other ranks, which wait in it. Then
  /// it is collective.
  void end_abandoned();
  /// Whether passes that were not synchronized have added to gradients since the last one that was.
  bool has_local_passes() const;
  /// Whether those gradients count by a loss weight.
  bool is_weighted() const;
  /// Moves every p.grad that the program has set to another tensor into its bucket.
  void move_into_slots();
  /// From the next backward on, checks for Inf and NaN where that is cheapest: under set_sharded()
  /// each p.grad when it arrives, otherwise averages, each rank those that it computes. Local.
  void watch_finite(bool watches);
  /// Whether all ranks have checked the averages of the last synchronized backward, and no gradient
  /// has arrived since. The same on every rank.
  bool has_seen_averages() const;
  /// Under set_sharded(): every p.grad that was not found to be finite and small enough for a
  /// finite sum over the ranks. Otherwise: every p.grad that the program has changed since the last
  /// synchronized backward (by autograd's version counter), or all if this rank has found an Inf or
  /// NaN in an average.
  std::vector<at::Tensor> unchecked_gradients() const;
  /// The buckets, which hold the gradients after a backward; null before the first one.
  std::shared_ptr<const Buckets> buckets() const;
  /// The sum of the weights of all ranks in the last synchronized backward. Averages were divided
  /// by it, or are to be under set_sharded(). The same on every rank.
  double divisor() const;
  /// Takes part in one backward of the other ranks with nothing to add, for a rank without inputs.
  /// True if a rank still had inputs. `weight`: see BucketReduction::begin(). Collective.
  bool join_backward(double weight = 0);
  /// The lowest rank that had inputs in the last synchronized backward; 0 if none had. The same on
  /// every rank.
  int leader() const;
  /// Whether a rank without inputs took part in it. The same on every rank.
  bool has_joined_ranks() const;
  /// Whether it produced averages, not an error on some rank. The same on every rank.
  bool has_averages() const;
  /// Whether its gradients were dropped because of an Inf or NaN. The same on every rank.
  bool has_dropped_gradients() const;

  /// The plan; empty before the first synchronized backward.
  BucketPlan plan() const;
  BackwardStats stats() const;
  const Options& options() const { return options_; }
  const std::shared_ptr<ReplicaGroup>& group() const { return group_; }

 private:
  /// How far this rank is.
  enum class State {
    kIdle,
    kRunning,    ///< in a synchronized backward
    kAbandoned,  ///< an exception has left one; the other ranks do not know yet
  };
  /// A parameter in the present synchronized backward.
  struct Progress {
    int gradients = 0;        ///< that have arrived
    int expected = 1;         ///< number that makes it ready
    bool is_ordered = false;  ///< stands in order_
    bool is_ready = false;
    bool is_late = false;      ///< a gradient arrived after its bucket was launched
    bool was_touched = false;  ///< a gradient arrived since the last synchronized backward
    int early_task = -1;       ///< graph task of a gradient that arrived before the begin
    size_t bucket = 0;
  };

  Reducer(std::vector<Parameter> parameters, std::shared_ptr<ReplicaGroup> group, Options options);

  // reducer.cpp: while backward runs
  void renew_parameters();
  void keep_plan();
  void take_kept_plan();
  void tell_hook_of_plan();
  void forget_plans();
  void watch(const at::Tensor& output, bool synchronize);
  void output_has_gradient(bool synchronize);
  bool reaches_parameters() const;
  void check_outputs_were_used();
  void begin_pass(bool synchronize);
  void forget_dropped_nonfinite();
  void begin_backward();
  void watch_allocations_of_backward(bool begin);
  at::Tensor take(size_t index, const at::Tensor& gradient);
  void on_accumulated(size_t index);
  void check_finite(size_t index);
  void count_gradient(size_t index);
  bool is_launched(size_t index) const;
  void mark_ready(size_t index);
  void launch(size_t bucket);
  void launch_in_plan_order();

  // loss_weight.cpp: all with mutex_ held
  bool count_weight();
  bool gradients_are_gone() const;
  bool has_old_gradients() const;
  [[noreturn]] void refuse_weight();
  void forget_weight();
  double own_weight() const;

  // end_of_backward.cpp: all with mutex_ held
  void end_backward(uint32_t flags);
  void abandon();
  void tell_of_abandoned();
  void end_sharding();
  void make_plan();
  void alias_slots();
  void assign_slots();
  std::vector<int64_t> first_order() const;
  BucketPlan own_plan() const;
  void naming_mismatches(const std::function<void()>& function) const;
  uint64_t active_parameters() const;
  void check_sharded_plan() const;
  void check_same_plan(const BucketPlan& plan) const;
  std::shared_ptr<c10d::CommHookInterface> make_own_hook() const;
  std::unique_ptr<BucketConsumer> make_consumer() const;
  void start_buckets();
  bool finish_unready(uint32_t flags);
  void skip_unused(uint32_t flags);
  bool is_skipped(const BackwardReport& report, size_t bucket) const;
  void check_reports(const std::vector<BackwardReport>& reports, bool reduced);
  void check_skipped(const std::vector<BackwardReport>& reports) const;
  bool is_empty(size_t index) const;
  uint8_t outcome_of(size_t index) const;
  void fill_missing(size_t index);
  std::vector<BackwardReport> exchange(uint32_t flags, bool complete, bool* reduced);
  void publish_gradients(const std::vector<BackwardReport>& reports);
  void average_sparse(const std::vector<BackwardReport>& reports);
  void record_results(const std::vector<BackwardReport>& reports);
  void apply_nonfinite_policy(const std::vector<BackwardReport>& reports);
  void keep_stats(const std::vector<BackwardReport>& reports);
  void reset();
  bool counts_unused() const { return options_.find_unused_parameters || options_.static_graph; }

  const std::shared_ptr<ReplicaGroup> group_;
  const Options options_;
  // Guards all below; held through end_backward(), where a communication hook may ask for stats().
  mutable std::recursive_mutex mutex_;
  std::vector<std::unique_ptr<ParameterGradient>> parameters_;
  std::vector<std::string> names_;  ///< by parameter
  std::vector<Progress> progress_;  ///< by parameter
  std::vector<size_t> order_;       ///< parameters as their first gradients came
  std::shared_ptr<c10d::CommHookInterface> hook_;
  std::optional<ShardedGradients> sharded_;
  bool unshards_ = false;  ///< from the next forward on; set_sharded() may come from a destructor

  std::shared_ptr<Buckets> buckets_;  ///< null before the first plan
  std::unique_ptr<BucketConsumer> consumer_;
  int unsettled_ = 0;  ///< backward passes until memory is used as in all that follow
  std::shared_ptr<AllocationPredictor>
      predictor_;  ///< null if gradients are copied into their slots
  std::vector<std::shared_ptr<AliasedSlot>> aliased_slots_;  ///< by parameter; null: copied
  std::vector<ParameterKind> planned_for_;  ///< parameters, as the Reducer looked at them last
  uint64_t plan_round_ = 0;                 ///< the last of rounds_ in which this plan was used
  std::unique_ptr<KeptPlans> kept_;         ///< other plans
  uint64_t rounds_ = 0;                     ///< backward passes that went well, on every rank
  uint64_t plans_ = 0;                      ///< made so far
  std::vector<int64_t> missing_;            ///< by bucket: parameters that are not ready
  std::vector<bool> is_launched_;           ///< by bucket
  std::vector<bool> is_skipped_;            ///< by bucket: unused, and not reduced
  size_t next_to_launch_ = 0;               ///< in the order of the plan

  State state_ = State::kIdle;
  /// Whether the next backward is synchronized, if it may come to parameters and to no output of
  /// the last forward.
  std::optional<bool> begins_at_parameter_;
  /// The last forward was synchronized, and no backward has come to what it returned.
  bool awaits_outputs_ = false;
  bool outputs_were_passed_by_ = false;  ///< gradients came to parameters meanwhile
  bool forward_failed_ = false;
  uint64_t forward_ = 0;
  std::optional<double> loss_weight_;
  double weight_ = 0;  ///< of the passes since the last synchronized backward, this one included
  std::optional<bool> is_weighted_;      ///< whether those have one; nullopt: none so far
  std::optional<double> joined_weight_;  ///< in join_backward()
  int weighted_task_ = -1;               ///< the graph task that weight_ has counted last
  /// Parameters without a gradient in this backward, and a copy of the p.grad that they had.
  std::vector<std::pair<size_t, at::Tensor>> missing_gradients_;
  bool others_had_inputs_ = false;  ///< in the last join_backward()
  int leader_ = 0;                  ///< see leader()
  bool has_joined_ranks_ = false;   ///< see has_joined_ranks()
  bool has_averages_ = false;       ///< see has_averages()
  bool has_dropped_gradients_ = false;
  bool watches_finite_ = false;  ///< see watch_finite()
  bool checks_finite_ = false;   ///< the same, as the present backward began
  /// Those that this rank made in the last synchronized backward; nullopt: not all ranks looked, or
  /// gradients have changed since.
  std::optional<bool> averages_are_finite_;
  /// The first parameter whose gradient had an Inf or NaN since the last synchronized backward.
  std::optional<size_t> nonfinite_;
  double divisor_ = 1;             ///< see divisor()
  bool has_local_passes_ = false;  ///< see has_local_passes()
  uint64_t backward_ = 0;
  uint64_t begin_ns_ = 0;
  uint64_t end_ns_ = 0;
  int64_t copied_bytes_ = 0;  ///< of gradients, since the last synchronized backward
  BackwardStats stats_;
};

}  // namespace farandole
