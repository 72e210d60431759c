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

struct BackwardContext;
struct BackwardReport;
struct PlannedBuckets;
class BackwardTracker;
class BucketLauncher;
class BucketPlanner;
class GradientStore;
class LossWeight;
class NonfiniteWatch;

/// Averages the gradients of a model over its replicas while backward runs.
///
/// The path of a gradient: a hook in front of autograd's node moves it into its slot in a bucket
/// (take, GradientStore). A hook behind the node counts it (on_accumulated); when all gradients of
/// a bucket have arrived, the bucket is launched (BucketLauncher). The end of backward
/// (end_backward) waits for the remaining buckets. p.grad is the slot from then on, so gradients
/// exist once.
///
/// The first synchronized backward only counts which parameters get how many gradients (several
/// under activation checkpointing), and in which order. At its end the buckets are planned in the
/// order of rank 0, gradients move into them, and all buckets are reduced. Later backward passes
/// overlap. A parameter that changes its dtype, device or requires_grad makes the next synchronized
/// backward a first one again, unless a plan for the parameters in this state was kept
/// (BucketPlanner).
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
  /// Throws InvalidArgument if the gradients of the backward before stayed local although nothing
  /// says so.
  void before_forward();
  /// Call after the forward: backward from `outputs` is synchronized if `synchronize`, otherwise
  /// local. A backward from other tensors of this forward begins at the first parameter that it
  /// reaches.
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
  /// Number of forward passes so far whose backward has reached a parameter.
  uint64_t passes() const;
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
  /// What the reports of all ranks amount to, in the last synchronized backward.
  struct Outcome {
    double divisor = 1;             ///< see divisor()
    int leader = 0;                 ///< see leader()
    bool had_inputs = false;        ///< a rank had
    bool has_joined_ranks = false;  ///< see has_joined_ranks()
  };

  /// What is told of the last synchronized backward.
  struct Results {
    Outcome outcome;
    bool has_averages = false;           ///< see has_averages()
    bool has_dropped_gradients = false;  ///< see has_dropped_gradients()
    BackwardStats stats;
    std::shared_ptr<const Buckets> buckets;  ///< see buckets()
  };

  Reducer(std::vector<Parameter> parameters, std::shared_ptr<ReplicaGroup> group, Options options);

  /// read(results_), at any time.
  template <class Read>
  auto read_results(const Read& read) const {
    const std::lock_guard<std::mutex> lock(results_mutex_);
    return read(results_);
  }
  /// change(results_). Called with mutex_.
  template <class Change>
  void change_results(const Change& change) {
    const std::lock_guard<std::mutex> lock(results_mutex_);
    change(results_);
  }
  void show_buckets();

  // In the order of a backward; output_has_gradient, take and on_accumulated are hooks, and lock
  // mutex_ themselves.
  void renew_parameters(bool keeps_plan);
  void output_has_gradient(bool synchronize);
  void begin_pass(bool synchronize);
  void begin_backward();
  void start_buckets();
  at::Tensor take(size_t index, const at::Tensor& gradient);
  void on_accumulated(size_t index);
  void end_backward(uint32_t flags);
  void make_plan();
  std::unique_ptr<BucketConsumer> make_consumer() const;
  bool launch_rest(uint32_t flags);
  std::vector<bool> skipped_buckets(bool is_abandoned) const;
  std::vector<BackwardReport> exchange(uint32_t flags, bool complete, bool* reduced);
  static Outcome outcome_of(const std::vector<BackwardReport>& reports);
  void check_reports(const std::vector<BackwardReport>& reports, bool reduced);
  void apply_nonfinite_policy(const std::vector<BackwardReport>& reports);
  BackwardStats stats_of(const std::vector<BackwardReport>& reports) const;
  void reset();

  void await_failed_backward() const;
  void abandon(bool beside_program);
  void tell_of_abandoned();
  void end_sharding();
  void tell_hook_of_plan() const;
  void naming_mismatches(const std::function<void()>& function) const;
  BackwardContext context(bool reduced) const;
  double own_weight() const;
  bool counts_unused() const { return options_.find_unused_parameters || options_.static_graph; }
  bool skips_unused() const;

  const std::shared_ptr<ReplicaGroup> group_;
  const Options options_;
  // Guards all below; held through a backward, its collectives and its hooks.
  mutable std::recursive_mutex mutex_;
  const std::unique_ptr<PlannedBuckets> plan_;  ///< the current one
  const std::unique_ptr<GradientStore> gradients_;
  const std::unique_ptr<BucketPlanner> planner_;
  const std::unique_ptr<BucketLauncher> launcher_;
  const std::unique_ptr<LossWeight> loss_weight_;
  const std::unique_ptr<NonfiniteWatch> nonfinite_;
  std::unique_ptr<BackwardTracker> tracker_;
  std::shared_ptr<c10d::CommHookInterface> hook_;
  std::optional<ShardedGradients> sharded_;
  bool unshards_ = false;  ///< from the next forward on; set_sharded() may come from a destructor
  std::optional<double> joined_weight_;  ///< in join_backward()
  Results results_;
  /// Held for a moment, with mutex_, to change results_: who reads them with it alone, as what a
  /// communication hook leaves to the thread of a collective, waits for no backward.
  mutable std::mutex results_mutex_;
};

}  // namespace farandole
