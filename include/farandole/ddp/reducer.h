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

class BirthSchedule;
class Birthplace;
class KeptPlans;
struct ParameterKind;
class ParameterGradient;
struct RoundNote;

/// Averages the gradients of a model over its replicas while backward runs.
///
/// Life of a gradient: a hook before autograd's node moves it into its place in a bucket (take); a
/// hook behind it counts it, and a bucket whose gradients have all come is launched (launch); the
/// end of backward (end_backward) waits for what is left. p.grad is that place from then on, so
/// gradients exist once.
///
/// The first synchronized backward only counts: which parameters get how many gradients (several
/// under activation checkpointing), in which order. At its end, before it returns, the buckets are
/// planned in the order of rank 0, gradients move into them, and all are reduced. Later backward
/// passes overlap. A parameter that changes its dtype, device or requires_grad makes the next
/// synchronized backward a first one again, unless there is a plan from the last time that the
/// parameters were like that: a few are kept (ddp/kept_plans.h).
///
/// A backward is synchronized if the forward that it comes from was (after_forward()); else its
/// gradients stay local and add up in the buckets. Its end is found by a hook on the outputs of the
/// forward, so that inner backward passes of reentrant checkpointing do not end it. A backward that
/// an exception leaves is abandoned; this rank says so before its next forward or backward, and the
/// others get a BackwardError that names it instead of a timeout.
///
/// Threads: hooks come from autograd's threads, all else from the caller's; any of them wait for
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
    /// Parameters without a gradient in a backward count as zeros instead of being an error.
    bool find_unused_parameters = false;
    /// Every backward gets the same gradients: those of the first. Parameters without one then are
    /// not waited for.
    bool static_graph = false;
    /// What becomes of a backward in which a gradient has an Inf or NaN; the same on every rank.
    /// Each is looked at when a pass has added to it, in one pass that only reads.
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

  /// Before a forward with gradients. Collective only if this rank has abandoned a backward. Throws
  /// InvalidArgument if gradients stayed local that seem to belong to the forward before.
  void before_forward();
  /// After it: backward from `outputs` is synchronized if `synchronize`, else local.
  void after_forward(const std::vector<at::Tensor>& outputs, bool synchronize);
  /// Instead of it: the forward threw.
  void forward_failed();

  /// What the loss of the next backward passes is a mean over (tokens, samples): gradients become
  /// sum(w * g) / sum(w) over ranks and accumulated passes. All ranks or none; nullopt: no weights.
  /// Backward throws InvalidArgument where it would add to gradients that have none.
  void set_loss_weight(std::optional<double> weight);
  /// Gives full buckets to `hook`, torch's interface, instead of averaging them; null: averages
  /// them again. Not in a backward. Throws InvalidArgument beside a wire_dtype. Collective.
  void set_hook(std::shared_ptr<c10d::CommHookInterface> hook);
  /// Leaves averaging to a sharded optimizer from the next backward on; nullopt: averages again.
  /// The next backward plans anew. Not in a backward. Local, unless a backward was abandoned.
  void set_sharded(std::optional<ShardedGradients> sharded);
  /// Tells peers of a backward that an exception has left, who wait in it. Collective if there is
  /// one.
  void end_abandoned();
  /// Whether passes that were not synchronized have added to gradients since the last one that was.
  bool has_local_passes() const;
  /// Whether those gradients count by a loss weight.
  bool is_weighted() const;
  /// Brings every p.grad that the program has put elsewhere into its bucket.
  void adopt_gradients();
  /// Looks for Inf and NaN where that costs least, from the next backward on: under set_sharded()
  /// at each p.grad as it comes, else at averages as they are made, each rank at those that it
  /// makes. Local.
  void watch_finite(bool watches);
  /// Whether all ranks have looked at the averages of the last synchronized backward, and no
  /// gradient came since. The same on every rank.
  bool has_seen_averages() const;
  /// Under set_sharded() every p.grad that was not seen to be finite, and small enough for a sum
  /// over ranks to be finite too; else those that the program has changed since the last
  /// synchronized backward (as autograd counts changes), or all if this rank has seen an Inf or NaN
  /// in an average.
  std::vector<at::Tensor> unseen_gradients() const;
  /// The buckets, in which gradients lie after a backward; null before the first one.
  std::shared_ptr<const Buckets> buckets() const;
  /// The sum of the weights of all ranks in the last synchronized backward: what averages were, or
  /// under set_sharded() are to be, divided by. The same on every rank.
  double divisor() const;
  /// Takes part in one backward of the others, with nothing to add: for a rank without inputs. True
  /// if a rank still had some. `weight`: see BucketReduction::begin(). Collective.
  bool join_backward(double weight = 0);
  /// The lowest rank that had inputs in the last synchronized backward; 0 if none had. The same on
  /// every rank.
  int leader() const;
  /// Whether a rank took part in it that had none. The same on every rank.
  bool has_joined_ranks() const;
  /// Whether its gradients were dropped for an Inf or NaN. The same on every rank.
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
    kAbandoned,  ///< an exception has left one; peers do not know yet
  };
  /// A parameter in the present synchronized backward.
  struct Progress {
    int gradients = 0;        ///< that came
    int expected = 1;         ///< that make it ready
    bool is_ordered = false;  ///< stands in order_
    bool is_ready = false;
    bool is_late = false;      ///< one came after its bucket was launched
    bool was_touched = false;  ///< a gradient came since the last synchronized backward
    int early_task = -1;       ///< the graph task of one that came before a begin
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
  void watch_births(bool begin);
  at::Tensor take(size_t index, const at::Tensor& gradient);
  void on_accumulated(size_t index);
  void look(size_t index);
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
  void settle_gradients();
  void give_places();
  std::vector<int64_t> first_order() const;
  BucketPlan own_plan() const;
  void naming_mismatches(const std::function<void()>& function) const;
  uint64_t active_parameters() const;
  void check_sharded_plan() const;
  void check_same_plan(const BucketPlan& plan) const;
  std::shared_ptr<c10d::CommHookInterface> make_own_hook() const;
  std::unique_ptr<BucketConsumer> make_consumer() const;
  void start_buckets();
  bool settle_unready(uint32_t flags);
  void skip_unused(uint32_t flags);
  bool is_skipped(const RoundNote& note, size_t bucket) const;
  void check_skipped(const std::vector<RoundNote>& notes) const;
  bool is_empty(size_t index) const;
  uint8_t outcome_of(size_t index) const;
  void settle_missing(size_t index);
  std::vector<RoundNote> exchange(uint32_t flags, bool complete, bool* reduced);
  void publish_gradients(const std::vector<RoundNote>& notes);
  void average_sparse(const std::vector<RoundNote>& notes);
  void note_results(const std::vector<RoundNote>& notes);
  void judge_nonfinite(const std::vector<RoundNote>& notes);
  void keep_stats(const std::vector<RoundNote>& notes);
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
  std::shared_ptr<BirthSchedule> births_;  ///< null if gradients are copied into their places
  std::vector<std::shared_ptr<Birthplace>> birthplaces_;  ///< by parameter; null: copied
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
  bool has_dropped_gradients_ = false;
  bool watches_finite_ = false;  ///< see watch_finite()
  bool looks_ = false;           ///< the same, as the present backward began
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
