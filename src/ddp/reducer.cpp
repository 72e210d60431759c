// SPDX-License-Identifier: Apache-2.0
// The steps of a backward, in their order.
#include "farandole/ddp/reducer.h"

#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "ddp/backward_report.h"
#include "ddp/backward_spans.h"
#include "ddp/backward_tracker.h"
#include "ddp/bucket_launcher.h"
#include "ddp/bucket_planner.h"
#include "ddp/check_backward.h"
#include "ddp/cooperative_reduction.h"
#include "ddp/freed_memory.h"
#include "ddp/gradient_hook.h"
#include "ddp/gradient_store.h"
#include "ddp/hooked_reduction.h"
#include "ddp/loss_weight.h"
#include "ddp/nonfinite_watch.h"
#include "ddp/planned_buckets.h"
#include "farandole/comm/events.h"
#include "farandole/ddp/hooks/all_reduce_hook.h"
#include "farandole/ddp/hooks/compress_hook.h"
#include "farandole/error.h"
#include "log.h"

namespace farandole {
namespace {

std::unique_ptr<GradientStore> store_of(std::vector<Reducer::Parameter> parameters,
                                        PlannedBuckets& plan) {
  auto store = std::make_unique<GradientStore>(plan);
  for (Reducer::Parameter& each : parameters) {
    store->add(std::move(each.name), std::move(each.tensor), each.sparse);
  }
  return store;
}

[[noreturn]] void refuse_shared_shards(const std::string& parameter) {
  throw InvalidArgument(
      "sharded-shared-parameter",
      "parameter '" + parameter +
          "' belongs to another wrapped model too, and an optimizer with gradients=\"shard\" takes "
          "its gradients.",
      "without shared memory each rank gets its shard of this model's gradients alone, without "
      "those "
      "of the other model.",
      "make the optimizer with gradients=\"full\", or wrap one module that contains both models.");
}

}  // namespace

std::shared_ptr<Reducer> Reducer::make(std::vector<Parameter> parameters,
                                       std::shared_ptr<ReplicaGroup> group, Options options) {
  const std::shared_ptr<Reducer> reducer(
      new Reducer(std::move(parameters), std::move(group), std::move(options)));
  reducer->tracker_ =
      std::make_unique<BackwardTracker>([weak = reducer->weak_from_this()](bool synchronize) {
        if (const auto self = weak.lock()) self->output_has_gradient(synchronize);
      });
  reducer->renew_parameters(/*keeps_plan=*/false);
  return reducer;
}

Reducer::Reducer(std::vector<Parameter> parameters, std::shared_ptr<ReplicaGroup> group,
                 Options options)
    : group_(std::move(group)),
      options_(std::move(options)),
      plan_(std::make_unique<PlannedBuckets>()),
      gradients_(store_of(std::move(parameters), *plan_)),
      planner_(std::make_unique<BucketPlanner>(*group_, options_, *gradients_, *plan_)),
      launcher_(std::make_unique<BucketLauncher>(*plan_, *gradients_)),
      loss_weight_(std::make_unique<LossWeight>()),
      nonfinite_(std::make_unique<NonfiniteWatch>(options_.report_nonfinite)) {}

Reducer::~Reducer() = default;

/// Reads all parameters anew, hooks those that autograd has another node for, and continues with
/// the plan for them if there is one.
void Reducer::renew_parameters(bool keeps_plan) {
  planner_->put_away(keeps_plan);
  for (size_t index = 0; index < gradients_->size(); ++index) {
    const auto node = (*gradients_)[index].renew();
    if (!node) continue;
    node->add_pre_hook(std::make_unique<GradientHook>(
        weak_from_this(),
        [this, index](const at::Tensor& gradient) { return take(index, gradient); }));
    node->add_post_hook(std::make_unique<AccumulatedHook>(
        weak_from_this(), [this, index] { on_accumulated(index); }));
  }
  planner_->take_plan();
  launcher_->change_plan();
  show_buckets();
  if (plan_->consumer) tell_hook_of_plan();
}

void Reducer::before_forward() {
  await_failed_backward();
  const std::lock_guard lock(mutex_);
  if (tracker_->is_running()) return;  // a forward within backward: activation checkpointing
  tell_of_abandoned();
  end_sharding();
  tracker_->check_outputs_were_used();
  tracker_->before_forward();
  if (gradients_->has_changed()) renew_parameters(/*keeps_plan=*/!sharded_);
}

void Reducer::after_forward(const std::vector<at::Tensor>& outputs, bool synchronize) {
  const std::lock_guard lock(mutex_);
  tracker_->after_forward(outputs, synchronize);
}

void Reducer::forward_failed() {
  const std::lock_guard lock(mutex_);
  tracker_->forward_failed();
}

void Reducer::output_has_gradient(bool synchronize) {
  const std::lock_guard lock(mutex_);
  if (tracker_->is_running()) return;  // a second output, or an inner backward
  if (gradients_->are_reached()) {
    begin_pass(synchronize);
  } else if (c10::GradMode::is_enabled()) {
    // autograd::grad(), for a gradient penalty: its graph leads past the outputs to the parameters.
    tracker_->begin_at_parameter(synchronize);
  }
}

void Reducer::begin_pass(bool synchronize) {
  tracker_->begin_pass();
  tell_of_abandoned();
  nonfinite_->forget_fixed(*gradients_);
  if (sharded_ && sharded_->before_backward) sharded_->before_backward();
  const bool adds_up = loss_weight_->count_pass(*gradients_);
  tracker_->add_pass(synchronize);
  if (synchronize) begin_backward();
  if (adds_up) return;
  if (!tracker_->is_running()) loss_weight_->forget();
  loss_weight_->refuse_pass();  // leaves the backward, which the other ranks are told
}

void Reducer::begin_backward() {
  const uint64_t backward = tracker_->begin();
  const auto self = shared_from_this();
  at_end_of_backward(
      [self] {
        const std::lock_guard lock(self->mutex_);
        self->end_backward(0);
      },
      [self, backward] {
        const std::lock_guard lock(self->mutex_);
        if (self->tracker_->is_in(backward)) self->abandon(/*beside_program=*/true);
      });
  if (plan_->consumer) start_buckets();
  plan_->births.begin();
  launcher_->count_early(current_graph_task());
}

/// Empty buckets, none launched.
void Reducer::start_buckets() {
  plan_->consumer->begin(own_weight(), nonfinite_->begin());
  launcher_->begin(joined_weight_.has_value());
}

/// Moves a gradient into its slot. Returns what autograd is to add to p.grad.
at::Tensor Reducer::take(size_t index, const at::Tensor& gradient) {
  const std::lock_guard lock(mutex_);
  const bool is_shared = (*gradients_)[index].is_shared();
  if (!is_shared || tracker_->is_running()) tracker_->parameter_was_reached();
  // If it is shared, this may be the backward of another model.
  const auto begins = is_shared ? std::nullopt : tracker_->begins_at_parameter();
  if (begins) {
    begin_pass(*begins);
  } else if (!is_shared && tracker_->is_first_outside_of_passes()) {
    log(LogLevel::kWarning,
        "parameter '" + gradients_->names()[index] + "' got a gradient on rank " +
            std::to_string(group_->rank()) +
            " that is not averaged: no forward of its DistributedDataParallel came before this "
            "backward. Call the wrapper instead of its .module, once for each backward, unless "
            "gradients are meant to stay on their rank.");
  }
  if (!gradient.defined()) return gradient;
  if (tracker_->is_running() && launcher_->is_launched(index)) {
    launcher_->note_late(index);
    return {};
  }
  if (is_shared && loss_weight_->is_set()) {
    loss_weight_->refuse_shared(gradients_->names()[index]);
  }
  if (is_shared && sharded_ && sharded_->scatter) {
    refuse_shared_shards(gradients_->names()[index]);
  }
  // Peers may still store into the slots of a backward that was abandoned.
  const bool may_use_slot = !tracker_->is_abandoned();
  const bool may_be_later = tracker_->is_running() && plan_->consumer && !nonfinite_->reports();
  return gradients_->take(index, gradient, loss_weight_->factor(), {may_use_slot, may_be_later});
}

/// p.grad has the gradient, which is in its slot if it could be moved there.
void Reducer::on_accumulated(size_t index) {
  const std::lock_guard lock(mutex_);
  nonfinite_->forget_averages();
  if (!launcher_->is_launched(index)) {
    const bool records = sharded_ && !sharded_->scatter;
    nonfinite_->check_gradient(index, (*gradients_)[index], records, group_->world_size());
  }
  planner_->note_arrival(index);
  gradients_->touch(index);
  if (tracker_->is_running()) {
    launcher_->count(index);
  } else {
    launcher_->note_early(index, current_graph_task());
  }
}

/// What is left is launched, ranks tell each other how it went, and gradients become averages or
/// every rank throws.
void Reducer::end_backward(uint32_t flags) {
  const c10::NoGradGuard no_grad;
  bool is_abandoned = false;
  const auto whatever_happens = c10::make_scope_exit([&] {
    reset();
    tracker_->end();
    if (is_abandoned) abandon(/*beside_program=*/false);
  });
  tracker_->last_gradient_arrived();
  nonfinite_->forget_averages();
  change_results([](Results& results) { results.has_averages = false; });
  const bool is_first = !plan_->consumer;
  if (is_first) {
    give_back_memory();
    naming_mismatches([&] { make_plan(); });
    start_buckets();
  }
  // Communication hooks and sharded optimizers write parameters after the averages.
  if (!hook_ && !sharded_) gradients_->warn_of_written_parameters(group_->rank());
  is_abandoned = true;  // if a hook throws: peers wait
  const bool complete = launch_rest(flags);
  is_abandoned = false;
  bool reduced = false;
  std::vector<BackwardReport> reports;
  naming_mismatches([&] { reports = exchange(flags, complete, &reduced); });
  if (plan_->unsettled > 0) {
    --plan_->unsettled;
    give_back_memory();
  }
  if (const auto failure = plan_->consumer->failure()) std::rethrow_exception(failure);
  check_reports(reports, reduced);
  if (!results_.has_averages) return;
  tracker_->succeed();
  planner_->note_success();
  gradients_->publish_missing(reports);
  if (!sharded_) gradients_->publish_outside();
  gradients_->average_sparse(reports, *group_, joined_weight_.has_value());
  gradients_->note_results();
  nonfinite_->note_averages(reports, *plan_->consumer);
  BackwardStats stats = stats_of(reports);
  emit_backward(stats);
  change_results([&](Results& results) { results.stats = std::move(stats); });
  if (is_first && options_.static_graph && !joined_weight_) launcher_->expect_as_now();
  apply_nonfinite_policy(reports);
}

/// Plans the buckets and gives each gradient its slot.
void Reducer::make_plan() {
  // What hooks do with their bucket runs in groups of theirs.
  const bool shares = !hook_ && !(sharded_ && sharded_->scatter);
  planner_->make_buckets(sharded_ ? sharded_->plan : std::nullopt,
                         {shares, /*registered=*/hook_ == nullptr});
  launcher_->change_plan();
  show_buckets();
  tell_hook_of_plan();
  plan_->consumer = make_consumer();
  planner_->finish_plan();
}

std::unique_ptr<BucketConsumer> Reducer::make_consumer() const {
  const auto& buckets = plan_->buckets;
  const size_t report_bytes = BackwardReport::bytes(gradients_->size());
  if (!hook_ && !sharded_) {
    auto cooperative = CooperativeReduction::make(buckets, *group_, report_bytes);
    if (cooperative) return cooperative;
  }
  std::vector<std::vector<at::Tensor>> parameters(buckets->size());
  for (size_t bucket = 0; bucket < buckets->size(); ++bucket) {
    for (const auto& slot : buckets->plan().buckets[bucket].slots) {
      parameters[bucket].push_back((*gradients_)[slot.parameter].parameter());
    }
  }
  std::shared_ptr<c10d::CommHookInterface> hook = sharded_ ? sharded_->scatter : hook_;
  if (!hook && !sharded_ && options_.wire_dtype) {
    hook = std::make_shared<CompressHook>(group_->group(), CompressOptions{*options_.wire_dtype});
  } else if (!hook && !sharded_) {
    hook = std::make_shared<AllReduceHook>(group_->group());
  }
  HookedReduction::Options options;
  options.result =
      sharded_ ? HookedReduction::Result::kElsewhere : HookedReduction::Result::kAverages;
  options.uses_group_apart = !hook_ || sharded_;
  options.report_bytes = report_bytes;
  options.detail_bytes = gradients_->size();
  return std::make_unique<HookedReduction>(buckets, std::move(parameters), group_, std::move(hook),
                                           options);
}

/// Launches every bucket that is not yet. False if a gradient is missing or came too late.
bool Reducer::launch_rest(uint32_t flags) {
  const bool is_abandoned = (flags & BackwardReport::kAbandoned) != 0;
  const bool is_joined = joined_weight_.has_value();
  const std::vector<bool> skipped = skipped_buckets(is_abandoned);
  const bool complete =
      !is_abandoned && launcher_->launch_rest({counts_unused(), is_joined, skipped});
  gradients_->finish_moves();  // of buckets that are not complete
  plan_->consumer->launch_rest();
  return complete;
}

/// Those in which no parameter got a gradient, on this rank and, as all ranks promise, on the
/// others. Where collectives are not compared before they run, ranks tell each other beforehand,
/// and a bucket is skipped by all or by none.
std::vector<bool> Reducer::skipped_buckets(bool is_abandoned) const {
  if (!skips_unused()) return {};
  std::vector<bool> skipped(plan_->buckets->size());
  if (!is_abandoned) skipped = launcher_->unused(joined_weight_.has_value());
  const auto devices = plan_->buckets->plan().devices();
  const bool are_compared = std::none_of(devices.begin(), devices.end(), [this](at::Device device) {
    return group_->has_uncompared(device.type());
  });
  if (are_compared) return skipped;
  std::vector<std::byte> own;
  for (const bool is_skipped : skipped) own.push_back(std::byte{is_skipped});
  const std::vector<std::byte> all = group_->all_gather(own);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] == std::byte{0}) skipped[i % skipped.size()] = false;
  }
  return skipped;
}

std::vector<BackwardReport> Reducer::exchange(uint32_t flags, bool complete, bool* reduced) {
  BackwardReport own;
  own.flags = flags | (tracker_->has_forward_failed() ? BackwardReport::kForwardFailed : 0U) |
              (loss_weight_->is_set() ? BackwardReport::kWeighted : 0U) |
              (counts_unused() ? BackwardReport::kCountsUnused : 0U) |
              (nonfinite_->checks_averages() ? BackwardReport::kCheckedFinite : 0U);
  own.weight = own_weight();
  own.forward = tracker_->forward();
  own.begin_ns = tracker_->begin_ns();
  own.end_ns = tracker_->end_ns();
  own.nonfinite = nonfinite_->nonfinite();
  own.gradients = launcher_->outcomes();
  own.plan = gradients_->active_parameters();
  *reduced = plan_->consumer->finish(own.pack(), complete);
  std::vector<BackwardReport> reports;
  for (int rank = 0; rank < group_->world_size(); ++rank) {
    reports.push_back(BackwardReport::unpack(plan_->consumer->report_of(rank), gradients_->size()));
    reports.back().failed_bucket = plan_->consumer->failed_bucket_of(rank);
    tracker_->raise_forward(reports.back().forward);
  }
  change_results([&](Results& results) { results.outcome = outcome_of(reports); });
  return reports;
}

Reducer::Outcome Reducer::outcome_of(const std::vector<BackwardReport>& reports) {
  Outcome outcome;
  outcome.divisor = 0;
  for (const BackwardReport& report : reports) outcome.divisor += report.weight;
  if (outcome.divisor == 0) outcome.divisor = 1;
  const auto has_inputs = [](const BackwardReport& report) {
    return !report.has(BackwardReport::kJoined);
  };
  const auto first = std::find_if(reports.begin(), reports.end(), has_inputs);
  outcome.had_inputs = first != reports.end();
  outcome.has_joined_ranks = !std::all_of(reports.begin(), reports.end(), has_inputs);
  outcome.leader = outcome.had_inputs ? static_cast<int>(first - reports.begin()) : 0;
  return outcome;
}

/// Throws if the backward passes of the ranks do not belong together; not on a rank that has
/// joined: it is in nobody's backward, and takes part in the next one.
void Reducer::check_reports(const std::vector<BackwardReport>& reports, bool reduced) {
  try {
    check_backward(reports, context(reduced));
    if (reduced && skips_unused()) launcher_->check_skipped(reports, context(reduced));
  } catch (const BackwardError&) {
    if (joined_weight_) return;
    throw;
  }
  change_results([reduced](Results& results) { results.has_averages = reduced; });
}

/// What is to become of gradients with Inf or NaN.
void Reducer::apply_nonfinite_policy(const std::vector<BackwardReport>& reports) {
  change_results([](Results& results) { results.has_dropped_gradients = false; });
  const auto has_seen = [](const BackwardReport& report) { return report.nonfinite >= 0; };
  const auto first = std::find_if(reports.begin(), reports.end(), has_seen);
  if (first == reports.end()) return;
  const NonfinitePolicy policy = options_.report_nonfinite;
  const std::string text = nonfinite_gradients(
      reports, context(true), [this](size_t parameter) { return plan_->bucket_of[parameter]; });
  if (policy != NonfinitePolicy::kWarn) gradients_->drop();
  change_results([policy](Results& results) {
    results.has_dropped_gradients = policy != NonfinitePolicy::kWarn;
    if (policy == NonfinitePolicy::kRaise) results.has_averages = false;
  });
  if (policy == NonfinitePolicy::kRaise) {
    if (!joined_weight_) throw_nonfinite(text, reports);  // it is in nobody's backward
  }
  if (group_->rank() == first - reports.begin()) log(LogLevel::kWarning, text);
}

BackwardStats Reducer::stats_of(const std::vector<BackwardReport>& reports) const {
  BackwardStats stats;
  stats.backward = tracker_->backward();
  stats.plans = planner_->plans();
  stats.begin_ns = tracker_->begin_ns();
  stats.end_ns = tracker_->end_ns();
  stats.finish_ns = comm::now_ns();
  stats.copied_bytes = gradients_->copied_bytes();
  for (size_t bucket = 0; bucket < plan_->buckets->size(); ++bucket) {
    const auto& planned = plan_->buckets->plan().buckets[bucket];
    const comm::BucketTimes times = plan_->consumer->times_of(bucket);
    stats.buckets.push_back({planned.bytes(), static_cast<int64_t>(planned.slots.size()),
                             times.published_ns, times.complete_ns, times.reduced_ns});
  }
  uint64_t latest = 0;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    stats.ranks.push_back({reports[rank].begin_ns, reports[rank].end_ns});
    if (reports[rank].end_ns > latest) stats.latest_rank = static_cast<int>(rank);
    latest = std::max(latest, reports[rank].end_ns);
  }
  return stats;
}

/// Whatever became of it, the backward is over.
void Reducer::reset() {
  plan_->births.end();
  launcher_->end_backward();
  gradients_->end_backward();
  nonfinite_->end_backward();
  loss_weight_->forget();
  tracker_->forget_local_passes();
  joined_weight_.reset();
}

/// Autograd has a thread for each accelerator, which lets go of a backward that has failed a moment
/// after backward() has thrown; only then is it known here that it was abandoned. Within a backward
/// (activation checkpointing) there is nothing to wait for.
void Reducer::await_failed_backward() const {
  constexpr std::chrono::seconds kPatience{1};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (current_graph_task() < 0 && std::chrono::steady_clock::now() < deadline) {
    {
      const std::lock_guard lock(mutex_);
      if (!tracker_->is_running()) return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

/// An exception has left this backward. Until the other ranks know, averages are stored into
/// buckets: by them where they were launched, by hooks when they are. So p.grad leaves its slot:
/// zeros that the program writes stay zeros. `beside_program`: this may be autograd's thread of an
/// accelerator while the program goes on and has p.grad to itself, until it calls us. Does not
/// throw.
void Reducer::abandon(bool beside_program) {
  tracker_->abandon();
  plan_->births.end();
  if (plan_->consumer) plan_->consumer->join_streams();
  try {
    gradients_->finish_moves();
  } catch (const std::exception&) {  // the device has failed
  }
  if (!beside_program || !gradients_->has_accelerators()) gradients_->leave_slots();
}

/// Ends a backward that an exception has left: peers wait in it, unless a mismatch has told them.
/// Collective if there is one.
void Reducer::tell_of_abandoned() {
  if (!tracker_->is_abandoned()) return;
  gradients_->leave_slots();
  if (!plan_->consumer || plan_->consumer->is_awaited()) {
    return end_backward(BackwardReport::kAbandoned);
  }
  reset();
  tracker_->end();
}

void Reducer::end_abandoned() {
  await_failed_backward();
  const std::lock_guard lock(mutex_);
  tell_of_abandoned();
}

bool Reducer::join_backward(double weight) {
  await_failed_backward();
  const std::lock_guard lock(mutex_);
  tell_of_abandoned();
  end_sharding();
  tracker_->begin();
  joined_weight_ = weight;
  if (plan_->consumer) start_buckets();
  change_results([](Results& results) { results.outcome.had_inputs = false; });
  end_backward(BackwardReport::kJoined);
  return results_.outcome.had_inputs;
}

/// What this rank's gradients count for.
double Reducer::own_weight() const { return joined_weight_.value_or(loss_weight_->sum()); }

bool Reducer::skips_unused() const {
  return options_.skip_unused_buckets && options_.find_unused_parameters && !sharded_;
}

BackwardContext Reducer::context(bool reduced) const {
  return {group_->name(), group_->rank(), tracker_->backward(), reduced, gradients_->names()};
}

/// Ranks that are in different collectives here have different plans, or one is elsewhere.
void Reducer::naming_mismatches(const std::function<void()>& function) const {
  try {
    function();
  } catch (const MismatchError& error) {
    const std::string text = error.what();
    throw MismatchError(
        "backward-met-other",
        "backward #" + std::to_string(tracker_->backward()) + " in group '" + group_->name() +
            "' on rank " + std::to_string(group_->rank()) + " of " +
            std::to_string(group_->world_size()) +
            " met a different operation: " + text.substr(0, text.find('\n')),
        "requires_grad of parameters differs between ranks, or a rank skipped a batch.",
        "freeze and unfreeze the same parameters on every rank, and give every rank the same "
        "number of batches; then zero the gradients and continue.",
        {error.ranks(), "backward"});
  }
}

void Reducer::set_loss_weight(std::optional<double> weight) {
  const std::lock_guard lock(mutex_);
  loss_weight_->set(weight);
}

void Reducer::set_sharded(std::optional<ShardedGradients> sharded) {
  const std::lock_guard lock(mutex_);
  if (!sharded) {  // its owner may be going, wherever this rank is
    if (!sharded_) return;
    sharded_->before_backward = nullptr;
    unshards_ = true;
    if (tracker_->is_idle()) end_sharding();
    return;
  }
  if (tracker_->is_running()) {
    throw InvalidArgument(
        "optimizer-during-backward", "a sharded optimizer was made in the middle of backward.",
        "its first buckets were already reduced.", "make the optimizer before the first forward.");
  }
  if (hook_) {
    throw InvalidArgument(
        "hook-and-shard",
        "a sharded optimizer was made for a DistributedDataParallel that has a communication hook.",
        "with gradients=\"shard\" the optimizer averages the gradients, and the hook would get "
        "none.",
        "use gradients=\"full\", or no hook.");
  }
  tell_of_abandoned();
  planner_->forget_kept();
  sharded_ = std::move(sharded);
  unshards_ = false;
  renew_parameters(/*keeps_plan=*/false);
}

/// Averages again, from the next backward on.
void Reducer::end_sharding() {
  if (!std::exchange(unshards_, false)) return;
  planner_->forget_kept();
  sharded_.reset();
  renew_parameters(/*keeps_plan=*/false);
}

void Reducer::set_hook(std::shared_ptr<c10d::CommHookInterface> hook) {
  const std::lock_guard lock(mutex_);
  if (hook && sharded_ && !unshards_) {
    throw InvalidArgument(
        "shard-and-hook",
        "a communication hook was registered for gradients that a sharded optimizer averages.",
        "with gradients=\"shard\" there is no all_reduce that a hook could replace.",
        "use gradients=\"full\", or no hook.");
  }
  if (tracker_->is_running()) {
    throw InvalidArgument("hook-during-backward",
                          "a communication hook was registered in the middle of backward.",
                          "its first buckets were already reduced without the hook.",
                          "register it before the first forward.");
  }
  if (hook && options_.wire_dtype) {
    throw InvalidArgument("hook-and-wire-dtype",
                          "a communication hook was registered in addition to wire_dtype.",
                          "each says how gradients are sent.",
                          "leave wire_dtype out: a hook can also cast, as CompressHook does.");
  }
  tell_of_abandoned();  // in the way that they know
  hook_ = std::move(hook);
  planner_->forget_kept();
  if (plan_->buckets) plan_->consumer = make_consumer();
}

/// What a hook has kept by bucket is of other buckets.
void Reducer::tell_hook_of_plan() const {
  if (auto* const hook = dynamic_cast<CommHook*>(hook_.get())) hook->begin_plan();
}

void Reducer::move_into_slots() {
  const std::lock_guard lock(mutex_);
  gradients_->move_into_slots();
}

void Reducer::watch_finite(bool watches) {
  const std::lock_guard lock(mutex_);
  nonfinite_->watch(watches);
}

bool Reducer::has_seen_averages() const {
  const std::lock_guard lock(mutex_);
  return nonfinite_->has_seen_averages();
}

std::vector<at::Tensor> Reducer::unchecked_gradients() const {
  const std::lock_guard lock(mutex_);
  return nonfinite_->unchecked_gradients(*gradients_, sharded_.has_value());
}

/// To readers at any time.
void Reducer::show_buckets() {
  std::shared_ptr<const Buckets> shown = plan_->buckets;
  change_results([&shown](Results& results) { results.buckets.swap(shown); });
}

std::shared_ptr<const Buckets> Reducer::buckets() const {
  return read_results([](const Results& results) { return results.buckets; });
}

BucketPlan Reducer::plan() const {
  const auto buckets = this->buckets();
  return buckets ? buckets->plan() : BucketPlan();
}

bool Reducer::has_local_passes() const {
  const std::lock_guard lock(mutex_);
  return tracker_->has_local_passes();
}

uint64_t Reducer::passes() const {
  const std::lock_guard lock(mutex_);
  return tracker_->passes();
}

bool Reducer::is_weighted() const {
  const std::lock_guard lock(mutex_);
  return loss_weight_->is_set();
}

double Reducer::divisor() const {
  return read_results([](const Results& results) { return results.outcome.divisor; });
}

int Reducer::leader() const {
  return read_results([](const Results& results) { return results.outcome.leader; });
}

bool Reducer::has_joined_ranks() const {
  return read_results([](const Results& results) { return results.outcome.has_joined_ranks; });
}

bool Reducer::has_averages() const {
  return read_results([](const Results& results) { return results.has_averages; });
}

bool Reducer::has_dropped_gradients() const {
  return read_results([](const Results& results) { return results.has_dropped_gradients; });
}

BackwardStats Reducer::stats() const {
  return read_results([](const Results& results) { return results.stats; });
}

}  // namespace farandole
