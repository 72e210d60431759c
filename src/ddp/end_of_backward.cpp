// SPDX-License-Identifier: Apache-2.0
// The end of a backward: what is left is settled, ranks tell each other how it went, and gradients
// become averages or every rank an error.
#include <ATen/ops/_sparse_coo_tensor_with_dims.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <malloc.h>

#include <algorithm>
#include <mutex>

#include "ddp/allocation/allocation_predictor.h"
#include "ddp/backward_report.h"
#include "ddp/check_backward.h"
#include "ddp/cooperative_reduction.h"
#include "ddp/hooked_reduction.h"
#include "ddp/kept_plans.h"
#include "ddp/parameter_gradient.h"
#include "farandole/comm/events.h"
#include "farandole/ddp/hooks/all_reduce_hook.h"
#include "farandole/ddp/hooks/compress_hook.h"
#include "farandole/ddp/reducer.h"
#include "farandole/error.h"
#include "log.h"

namespace farandole {
namespace {

/// Freed memory that goes back to the system while gradients move into their slots.
constexpr size_t kFreedBytes = 32 << 20;

/// Backward passes with a plan until memory is used as in all that follow: in the first, gradients
/// move into their buckets; in the second, they are born there.
constexpr int kUnsettledBackwards = 2;

/// What malloc keeps of freed memory would be needed twice: here, and for the buckets. By one
/// thread at a time: under another malloc it is the first call of glibc's, and sets that up.
void give_back_memory() {
#ifdef __GLIBC__
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  ::malloc_trim(0);
#endif
}

/// A gradient without rows, of the form that embeddings give theirs.
at::Tensor nothing_sparse(const at::Tensor& parameter) {
  return at::_sparse_coo_tensor_with_dims(1, parameter.dim() - 1, parameter.sizes(),
                                          parameter.options().layout(at::kSparse));
}

}  // namespace

void Reducer::end_backward(uint32_t flags) {
  const c10::NoGradGuard no_grad;
  State afterwards = State::kIdle;
  const auto whatever_happens = c10::make_scope_exit([&] {
    reset();
    state_ = afterwards;
    if (state_ == State::kAbandoned) abandon();
  });
  end_ns_ = comm::now_ns();
  averages_are_finite_.reset();
  has_averages_ = false;
  const bool is_first = !consumer_;
  if (is_first) {
    give_back_memory();
    naming_mismatches([&] { make_plan(); });
    start_buckets();
  }
  afterwards = State::kAbandoned;  // if a hook throws: peers wait
  const bool complete = finish_unready(flags);
  consumer_->launch_rest();
  afterwards = State::kIdle;
  bool reduced = false;
  std::vector<BackwardReport> reports;
  naming_mismatches([&] { reports = exchange(flags, complete, &reduced); });
  if (unsettled_ > 0) {
    --unsettled_;
    give_back_memory();
  }
  if (const auto failure = consumer_->failure()) std::rethrow_exception(failure);
  check_reports(reports, reduced);
  if (!has_averages_) return;
  forward_failed_ = false;
  plan_round_ = ++rounds_;
  kept_->forget_idle(rounds_);
  publish_gradients(reports);
  average_sparse(reports);
  record_results(reports);
  keep_stats(reports);
  if (is_first && options_.static_graph && !joined_weight_) {
    for (Progress& progress : progress_) progress.expected = progress.gradients;
  }
  apply_nonfinite_policy(reports);
}

/// Throws if the backward passes of the ranks do not belong together; not on a rank that has
/// joined: it is in nobody's backward, and takes part in the next one.
void Reducer::check_reports(const std::vector<BackwardReport>& reports, bool reduced) {
  try {
    check_backward(reports, {group_->name(), group_->rank(), backward_, reduced, names_});
    if (reduced) check_skipped(reports);
  } catch (const BackwardError&) {
    if (joined_weight_) return;
    throw;
  }
  has_averages_ = reduced;
}

/// Ranks that are in different collectives here have different plans, or one is elsewhere.
void Reducer::naming_mismatches(const std::function<void()>& function) const {
  try {
    function();
  } catch (const MismatchError& error) {
    const std::string text = error.what();
    throw MismatchError(
        "backward #" + std::to_string(backward_) + " in group '" + group_->name() + "' on rank " +
            std::to_string(group_->rank()) + " of " + std::to_string(group_->world_size()) +
            " met something else: " + text.substr(0, text.find('\n')),
        "other parameters have requires_grad on another rank than here, or a rank skipped a batch.",
        "freeze and unfreeze the same parameters on every rank, and give each as many batches; "
        "then zero the gradients and go on.");
  }
}

/// What the optimizer will find.
void Reducer::record_results(const std::vector<BackwardReport>& reports) {
  for (const auto& parameter : parameters_) parameter->note_result();
  const bool all_checked = std::all_of(
      reports.begin(), reports.end(),
      [](const BackwardReport& report) { return report.has(BackwardReport::kCheckedFinite); });
  if (all_checked) averages_are_finite_ = consumer_->are_finite();
}

/// What is to become of gradients with Inf or NaN.
void Reducer::apply_nonfinite_policy(const std::vector<BackwardReport>& reports) {
  has_dropped_gradients_ = false;
  const auto has_seen = [](const BackwardReport& report) { return report.nonfinite >= 0; };
  const auto first = std::find_if(reports.begin(), reports.end(), has_seen);
  if (first == reports.end()) return;
  const NonfinitePolicy policy = options_.report_nonfinite;
  const std::string text =
      nonfinite_gradients(reports, {group_->name(), group_->rank(), backward_, true, names_},
                          [this](size_t parameter) { return progress_[parameter].bucket; });
  if (policy != NonfinitePolicy::kWarn) {
    for (const auto& parameter : parameters_) {
      if (parameter->is_active()) parameter->parameter().mutable_grad() = at::Tensor();
    }
    has_dropped_gradients_ = true;
  }
  if (policy == NonfinitePolicy::kRaise) {
    has_averages_ = false;
    if (!joined_weight_) throw_nonfinite(text, reports);  // it is in nobody's backward
  }
  if (group_->rank() == first - reports.begin()) log(LogLevel::kWarning, text);
}

/// Parameters as their first gradients came, then those that got none, the last first. As long on
/// every rank, whatever is frozen there: the rest is -1.
std::vector<int64_t> Reducer::first_order() const {
  std::vector<int64_t> order;
  const auto add = [&](size_t index) {
    const ParameterGradient& parameter = *parameters_[index];
    if (parameter.is_active() && !parameter.is_sparse()) {
      order.push_back(static_cast<int64_t>(index));
    }
  };
  for (const size_t index : order_) add(index);
  for (const size_t index : reverse_registration_order(parameters_.size())) {
    if (!progress_[index].is_ordered) add(index);
  }
  order.resize(parameters_.size(), -1);
  return order;
}

/// Plans the buckets and gives each gradient its slot.
void Reducer::make_plan() {
  if (sharded_ && sharded_->plan) check_sharded_plan();
  BucketPlan plan = sharded_ && sharded_->plan ? *sharded_->plan : own_plan();
  check_same_plan(plan);
  const bool shares = !hook_ && !(sharded_ && sharded_->scatter);
  buckets_ = std::make_shared<Buckets>(std::move(plan), shares ? group_->communicator() : nullptr);
  alias_slots();
  tell_hook_of_plan();
  consumer_ = make_consumer();
  unsettled_ = kUnsettledBackwards;
  ++plans_;
  plan_round_ = rounds_;
  int64_t bytes = 0;
  for (const auto& parameter : parameters_) {
    bytes += static_cast<int64_t>(parameter->parameter().nbytes());
  }
  kept_->make_room(bytes);
}

/// Puts the plan away for when its parameters are the active ones again.
void Reducer::keep_plan() {
  if (consumer_ && !sharded_) {
    KeptPlan plan{std::move(planned_for_),
                  std::move(buckets_),
                  std::move(consumer_),
                  std::move(predictor_),
                  std::move(aliased_slots_),
                  {},
                  unsettled_,
                  plan_round_};
    for (const Progress& progress : progress_) plan.expected.push_back(progress.expected);
    kept_->put(std::move(plan));
  }
  consumer_.reset();
  predictor_.reset();
  buckets_.reset();
}

/// What a hook has kept by bucket is of other buckets.
void Reducer::tell_hook_of_plan() {
  if (auto* const hook = dynamic_cast<CommHook*>(hook_.get())) hook->begin_plan();
}

/// Goes on with the plan for the parameters as they are, if it was kept.
void Reducer::take_kept_plan() {
  auto plan = kept_->take(planned_for_);
  if (!plan) return;
  tell_hook_of_plan();
  buckets_ = std::move(plan->buckets);
  consumer_ = std::move(plan->consumer);
  predictor_ = std::move(plan->predictor);
  aliased_slots_ = std::move(plan->aliased_slots);
  unsettled_ = plan->unsettled;
  plan_round_ = plan->last_round;
  is_launched_.assign(buckets_->size(), false);
  for (size_t index = 0; index < progress_.size(); ++index) {
    progress_[index].expected = plan->expected[index];
  }
  assign_slots();
}

/// Averaging goes another way from now on.
void Reducer::forget_plans() {
  kept_->clear();
  consumer_.reset();
}

/// In rank 0's order.
BucketPlan Reducer::own_plan() const {
  std::vector<PlannedParameter> planned;
  for (const auto& parameter : parameters_) {
    const at::Tensor& tensor = parameter->parameter();
    planned.push_back({tensor.numel(), tensor.scalar_type(), tensor.device()});
  }
  const std::vector<int64_t> agreed = group_->broadcast(first_order());
  const std::vector<size_t> order(agreed.begin(), std::find(agreed.begin(), agreed.end(), -1));
  return make_bucket_plan(planned, order, options_.caps, group_->world_size());
}

/// The optimizer has planned for the parameters that were active when it was made.
void Reducer::check_sharded_plan() const {
  std::vector<bool> is_planned(parameters_.size());
  for (const auto& bucket : sharded_->plan->buckets) {
    for (const auto& slot : bucket.slots) is_planned[slot.parameter] = true;
  }
  for (size_t index = 0; index < parameters_.size(); ++index) {
    const ParameterGradient& parameter = *parameters_[index];
    if (parameter.is_sparse() || parameter.is_active() == is_planned[index]) continue;
    throw InvalidArgument(
        "requires_grad of '" + names_[index] +
            "' has changed since the sharded optimizer was made.",
        "with gradients=\"shard\" over this group gradients go to ranks as planned then.",
        "call rebuild() of the optimizer on every rank, before the next forward.");
  }
}

/// Gives each gradient its slot, and lends it to what computes the gradient if the ranks share it.
void Reducer::alias_slots() {
  aliased_slots_.assign(parameters_.size(), nullptr);
  if (!buckets_->symmetric()) predictor_.reset();
  for (size_t bucket = 0; bucket < buckets_->size(); ++bucket) {
    for (const auto& slot : buckets_->plan().buckets[bucket].slots) {
      if (!predictor_ || !predictor_->wants(slot.parameter)) continue;
      const at::Tensor tensor =
          buckets_->slot_tensor(bucket, slot, parameters_[slot.parameter]->parameter());
      aliased_slots_[slot.parameter] =
          AliasedSlot::of(tensor.mutable_data_ptr(), tensor.nbytes(), buckets_);
    }
  }
  assign_slots();
  if (predictor_) predictor_->assign_slots(aliased_slots_);
}

void Reducer::assign_slots() {
  for (size_t bucket = 0; bucket < buckets_->size(); ++bucket) {
    for (const auto& slot : buckets_->plan().buckets[bucket].slots) {
      progress_[slot.parameter].bucket = bucket;
      ParameterGradient& parameter = *parameters_[slot.parameter];
      const auto make_slot = [buckets = buckets_, bucket, slot, tensor = parameter.parameter()] {
        return buckets->slot_tensor(bucket, slot, tensor);
      };
      parameter.assign_slot(make_slot, aliased_slots_[slot.parameter]);
    }
  }
}

/// A hash of which parameters get gradients.
uint64_t Reducer::active_parameters() const {
  uint64_t hash = 1;
  for (const auto& parameter : parameters_) hash = hash * 31 + (parameter->is_active() ? 1 : 0);
  return hash;
}

/// Throws on every rank unless all have made the same plan of the same parameters.
void Reducer::check_same_plan(const BucketPlan& plan) const {
  uint64_t hash = plan.hash() * 31 + active_parameters();
  if (options_.wire_dtype) hash += 1 + static_cast<uint64_t>(*options_.wire_dtype);
  const std::vector<uint64_t> hashes = group_->all_gather(hash);
  for (size_t rank = 1; rank < hashes.size(); ++rank) {
    if (hashes[rank] == hashes[0]) continue;
    throw_other_plan(rank, group_->name());
  }
}

/// Without a hook of the program.
std::shared_ptr<c10d::CommHookInterface> Reducer::make_own_hook() const {
  const auto& wire = options_.wire_dtype;
  if (!wire) return std::make_shared<AllReduceHook>(group_->group());
  return std::make_shared<CompressHook>(group_->group(), CompressOptions{*wire});
}

std::unique_ptr<BucketConsumer> Reducer::make_consumer() const {
  const size_t report_bytes = BackwardReport::bytes(parameters_.size());
  if (!hook_ && !sharded_) {
    auto cooperative = CooperativeReduction::make(buckets_, *group_, report_bytes);
    if (cooperative) return cooperative;
  }
  std::vector<std::vector<at::Tensor>> parameters(buckets_->size());
  for (size_t bucket = 0; bucket < buckets_->size(); ++bucket) {
    for (const auto& slot : buckets_->plan().buckets[bucket].slots) {
      parameters[bucket].push_back(parameters_[slot.parameter]->parameter());
    }
  }
  auto hook = sharded_ ? sharded_->scatter : hook_ ? hook_ : make_own_hook();
  const auto result =
      sharded_ ? HookedReduction::Result::kElsewhere : HookedReduction::Result::kAverages;
  return std::make_unique<HookedReduction>(buckets_, std::move(parameters), group_, std::move(hook),
                                           result, report_bytes);
}

/// Empty buckets, none launched. Under a static graph those that never get a gradient are full.
void Reducer::start_buckets() {
  checks_finite_ = watches_finite_;
  consumer_->begin(own_weight(), checks_finite_);
  missing_.assign(buckets_->size(), 0);
  is_launched_.assign(buckets_->size(), false);
  is_skipped_.assign(buckets_->size(), false);
  next_to_launch_ = 0;
  for (size_t bucket = 0; bucket < buckets_->size(); ++bucket) {
    for (const auto& slot : buckets_->plan().buckets[bucket].slots) {
      Progress& progress = progress_[slot.parameter];
      progress.is_ready = progress.expected == 0 && !joined_weight_;
      if (progress.is_ready) fill_missing(slot.parameter);
      if (progress.is_ready) continue;
      parameters_[slot.parameter]->open_slot();
      ++missing_[bucket];
    }
  }
  for (size_t bucket = 0; bucket < buckets_->size(); ++bucket) {
    if (missing_[bucket] == 0 && !is_launched_[bucket]) launch(bucket);
  }
}

/// Brings every gradient that is not in its bucket there and launches the rest. False if one is
/// missing or came too late.
bool Reducer::finish_unready(uint32_t flags) {
  if ((flags & BackwardReport::kAbandoned) != 0) return false;
  bool complete = true;
  size_t moved = 0;
  skip_unused(flags);
  for (size_t index = 0; index < parameters_.size(); ++index) {
    ParameterGradient& parameter = *parameters_[index];
    const Progress& progress = progress_[index];
    if (progress.is_late) complete = false;
    if (progress.is_ready) continue;
    if (progress.gradients == 0 && !counts_unused() && !joined_weight_ && parameter.is_active()) {
      complete = false;
      continue;
    }
    if (!parameter.has_slot() || is_skipped_[progress.bucket]) continue;
    if (progress.gradients == 0 || is_empty(index)) {
      fill_missing(index);
    } else {
      if (!parameter.is_in_slot()) moved += parameter.parameter().nbytes();
      parameter.move_into_slot();
    }
    if (unsettled_ > 0 && moved >= kFreedBytes) {
      give_back_memory();
      moved = 0;
    }
    mark_ready(index);
  }
  return complete;
}

/// Buckets in which no parameter got a gradient on this rank, nor, as all ranks promise, on
/// another.
void Reducer::skip_unused(uint32_t flags) {
  if (!options_.skip_unused_buckets || !options_.find_unused_parameters || sharded_) return;
  BackwardReport own;
  own.flags = flags;
  for (size_t index = 0; index < parameters_.size(); ++index) {
    own.gradients.push_back(outcome_of(index));
  }
  for (size_t bucket = 0; bucket < buckets_->size(); ++bucket) {
    if (is_launched_[bucket] || !is_skipped(own, bucket)) continue;
    is_skipped_[bucket] = true;
    if (!consumer_->in_plan_order()) consumer_->skip(bucket);
  }
  if (consumer_->in_plan_order()) launch_in_plan_order();
}

/// Whether the rank of `report` has left a bucket out.
bool Reducer::is_skipped(const BackwardReport& report, size_t bucket) const {
  const auto& slots = buckets_->plan().buckets[bucket].slots;
  return !report.has(BackwardReport::kJoined) &&
         std::none_of(slots.begin(), slots.end(),
                      [&](const auto& slot) { return report.has_gradient(slot.parameter); });
}

/// Throws on every rank if one has left out a bucket that others have not.
void Reducer::check_skipped(const std::vector<BackwardReport>& reports) const {
  if (!options_.skip_unused_buckets || !options_.find_unused_parameters || sharded_) return;
  for (size_t bucket = 0; bucket < buckets_->size(); ++bucket) {
    std::vector<int> ranks;
    for (size_t rank = 0; rank < reports.size(); ++rank) {
      if (is_skipped(reports[rank], bucket)) ranks.push_back(static_cast<int>(rank));
    }
    if (ranks.empty() || ranks.size() == reports.size()) continue;
    throw_skipped(ranks, names_[buckets_->plan().buckets[bucket].slots[0].parameter],
                  {group_->name(), group_->rank(), backward_, true, names_}, reports.size());
  }
}

/// Whether autograd brought a parameter undefined gradients alone.
bool Reducer::is_empty(size_t index) const {
  return progress_[index].gradients > 0 && !parameters_[index]->parameter().grad().defined();
}

/// What came of a parameter's gradient on this rank.
uint8_t Reducer::outcome_of(size_t index) const {
  const Progress& progress = progress_[index];
  if (progress.is_late) return BackwardReport::kLate;
  if (is_empty(index)) return BackwardReport::kEmpty;
  if (progress.gradients > 0 || !parameters_[index]->is_active()) return BackwardReport::kReady;
  return progress.was_touched ? BackwardReport::kEarlier : BackwardReport::kNone;
}

/// A parameter without a gradient in this backward: zero, or what p.grad has from earlier ones.
void Reducer::fill_missing(size_t index) {
  ParameterGradient& parameter = *parameters_[index];
  missing_gradients_.emplace_back(index, joined_weight_ ? at::Tensor() : parameter.saved());
  if (joined_weight_ || !parameter.move_into_slot()) parameter.clear_slot();
}

std::vector<BackwardReport> Reducer::exchange(uint32_t flags, bool complete, bool* reduced) {
  BackwardReport own;
  own.flags = flags | (forward_failed_ ? BackwardReport::kForwardFailed : 0U) |
              (loss_weight_ ? BackwardReport::kWeighted : 0U) |
              (counts_unused() ? BackwardReport::kCountsUnused : 0U) |
              (checks_finite_ ? BackwardReport::kCheckedFinite : 0U);
  own.weight = own_weight();
  own.forward = forward_;
  own.begin_ns = begin_ns_;
  own.end_ns = end_ns_;
  own.nonfinite = nonfinite_ ? static_cast<int64_t>(*nonfinite_) : -1;
  for (size_t index = 0; index < parameters_.size(); ++index) {
    own.gradients.push_back(outcome_of(index));
  }
  own.plan = active_parameters();
  *reduced = consumer_->finish(own.pack(), complete);
  std::vector<BackwardReport> reports;
  for (int rank = 0; rank < group_->world_size(); ++rank) {
    reports.push_back(BackwardReport::unpack(consumer_->report_of(rank), parameters_.size()));
    reports.back().failed_bucket = consumer_->failed_bucket_of(rank);
    forward_ = std::max(forward_, reports.back().forward);
  }
  divisor_ = 0;
  for (const BackwardReport& report : reports) divisor_ += report.weight;
  if (divisor_ == 0) divisor_ = 1;
  const auto has_inputs = [](const BackwardReport& report) {
    return !report.has(BackwardReport::kJoined);
  };
  const auto first = std::find_if(reports.begin(), reports.end(), has_inputs);
  others_had_inputs_ = first != reports.end();
  has_joined_ranks_ = !std::all_of(reports.begin(), reports.end(), has_inputs);
  leader_ = others_had_inputs_ ? static_cast<int>(first - reports.begin()) : 0;
  return reports;
}

/// p.grad of parameters that had no gradient here: the average if another rank had one, else as it
/// was.
void Reducer::publish_gradients(const std::vector<BackwardReport>& reports) {
  for (const auto& [index, saved] : missing_gradients_) {
    const bool used =
        std::any_of(reports.begin(), reports.end(), [i = index](const BackwardReport& report) {
          return !report.has(BackwardReport::kJoined) && report.has_gradient(i);
        });
    if (used) {
      parameters_[index]->expose_slot();
    } else {
      parameters_[index]->restore(saved);
    }
  }
}

/// Sparse gradients have no slot in a bucket; each is added up by itself.
void Reducer::average_sparse(const std::vector<BackwardReport>& reports) {
  double weights = 0;
  for (const BackwardReport& report : reports) weights += report.weight;
  for (size_t index = 0; index < parameters_.size(); ++index) {
    const ParameterGradient& parameter = *parameters_[index];
    if (!parameter.is_sparse() || !parameter.is_active()) continue;
    const bool used =
        std::any_of(reports.begin(), reports.end(),
                    [&](const BackwardReport& report) { return report.has_gradient(index); });
    if (!used) continue;
    at::Tensor gradient = joined_weight_ ? at::Tensor() : parameter.parameter().grad();
    if (!gradient.defined()) gradient = nothing_sparse(parameter.parameter());
    std::vector<at::Tensor> tensors{gradient};
    const auto work = group_->group()->allreduce(tensors);
    if (work) work->wait();
    if (weights != 0) gradient.div_(weights);
    parameter.parameter().mutable_grad() = gradient;
  }
}

void Reducer::keep_stats(const std::vector<BackwardReport>& reports) {
  stats_ = {};
  stats_.backward = backward_;
  stats_.plans = plans_;
  stats_.begin_ns = begin_ns_;
  stats_.end_ns = end_ns_;
  stats_.finish_ns = comm::now_ns();
  stats_.copied_bytes = copied_bytes_;
  for (size_t bucket = 0; bucket < buckets_->size(); ++bucket) {
    const auto& planned = buckets_->plan().buckets[bucket];
    const comm::BucketTimes times = consumer_->times_of(bucket);
    stats_.buckets.push_back({planned.bytes(), static_cast<int64_t>(planned.slots.size()),
                              times.published_ns, times.complete_ns, times.reduced_ns});
  }
  uint64_t latest = 0;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    stats_.ranks.push_back({reports[rank].begin_ns, reports[rank].end_ns});
    if (reports[rank].end_ns > latest) stats_.latest_rank = static_cast<int>(rank);
    latest = std::max(latest, reports[rank].end_ns);
  }
}

/// Whatever became of it, the backward is over. The caller says what state_ is then.
void Reducer::reset() {
  watch_allocations_of_backward(false);
  for (Progress& progress : progress_) {
    if (progress.expected != 0 || progress.gradients != 0) {
      progress.expected = std::max(progress.expected, progress.gradients);
    }
    progress.gradients = 0;
    progress.is_ready = false;
    progress.is_late = false;
    progress.was_touched = false;
    progress.early_task = -1;
  }
  missing_gradients_.clear();
  has_local_passes_ = false;
  nonfinite_.reset();
  copied_bytes_ = 0;
  forget_weight();
  joined_weight_.reset();
}

/// An exception has left this backward. Until peers know, averages are stored into buckets: by them
/// where they were launched, by hooks when they are. So p.grad leaves its slot: zeros that the
/// program writes stay zeros. Does not throw.
void Reducer::abandon() {
  state_ = State::kAbandoned;
  watch_allocations_of_backward(false);
  for (size_t index = 0; index < parameters_.size(); ++index) {
    try {
      parameters_[index]->leave_slot();
    } catch (const std::exception&) {  // no memory: then there is no gradient
      parameters_[index]->parameter().mutable_grad() = at::Tensor();
    }
  }
}

/// Ends a backward that an exception has left: peers wait in it, unless a mismatch has told them.
/// Collective if there is one.
void Reducer::tell_of_abandoned() {
  if (state_ != State::kAbandoned) return;
  if (!consumer_ || consumer_->is_awaited()) return end_backward(BackwardReport::kAbandoned);
  reset();
  state_ = State::kIdle;
}

void Reducer::end_abandoned() {
  const std::lock_guard lock(mutex_);
  tell_of_abandoned();
}

bool Reducer::join_backward(double weight) {
  const std::lock_guard lock(mutex_);
  tell_of_abandoned();
  end_sharding();
  ++backward_;
  state_ = State::kRunning;
  joined_weight_ = weight;
  begin_ns_ = comm::now_ns();
  if (consumer_) start_buckets();
  others_had_inputs_ = false;
  end_backward(BackwardReport::kJoined);
  return others_had_inputs_;
}

void Reducer::set_sharded(std::optional<ShardedGradients> sharded) {
  const std::lock_guard lock(mutex_);
  if (!sharded) {  // its owner may be going, wherever this rank is
    if (!sharded_) return;
    sharded_->before_backward = nullptr;
    unshards_ = true;
    if (state_ == State::kIdle) end_sharding();
    return;
  }
  if (state_ == State::kRunning) {
    throw InvalidArgument("a sharded optimizer was made in the middle of backward.",
                          "its first buckets have gone another way already.",
                          "make it before the first forward.");
  }
  if (hook_) {
    throw InvalidArgument(
        "a sharded optimizer and a communication hook were to share gradients.",
        "with gradients=\"shard\" the optimizer averages them, and the hook would have none.",
        "use gradients=\"full\", or no hook.");
  }
  tell_of_abandoned();
  forget_plans();
  sharded_ = std::move(sharded);
  unshards_ = false;
  renew_parameters();
}

/// Averages again, from the next backward on.
void Reducer::end_sharding() {
  if (!std::exchange(unshards_, false)) return;
  forget_plans();
  sharded_.reset();
  renew_parameters();
}

void Reducer::set_hook(std::shared_ptr<c10d::CommHookInterface> hook) {
  const std::lock_guard lock(mutex_);
  if (hook && sharded_ && !unshards_) {
    throw InvalidArgument(
        "a communication hook was registered where a sharded optimizer averages gradients.",
        "with gradients=\"shard\" there is no all_reduce that a hook could replace.",
        "use gradients=\"full\", or no hook.");
  }
  if (state_ == State::kRunning) {
    throw InvalidArgument("a communication hook was registered in the middle of backward.",
                          "its first buckets have gone another way already.",
                          "register it before the first forward.");
  }
  if (hook && options_.wire_dtype) {
    throw InvalidArgument("a communication hook was registered beside wire_dtype.",
                          "each says how gradients travel.",
                          "leave wire_dtype out: a hook may cast too, as CompressHook does.");
  }
  tell_of_abandoned();  // in the way that they know
  hook_ = std::move(hook);
  kept_->clear();
  if (buckets_) consumer_ = make_consumer();
}

}  // namespace farandole
