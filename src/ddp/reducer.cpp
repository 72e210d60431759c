// SPDX-License-Identifier: Apache-2.0
// During backward. What happens at its end: end_of_backward.cpp.
#include "farandole/ddp/reducer.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "ddp/allocation/allocation_predictor.h"
#include "ddp/backward_report.h"
#include "ddp/finite_check.h"
#include "ddp/gradient_hook.h"
#include "ddp/kept_plans.h"
#include "ddp/parameter_gradient.h"
#include "farandole/comm/events.h"
#include "farandole/error.h"

namespace farandole {

namespace {

/// Gradients of less are copied into their slots, which costs no more.
constexpr size_t kLeastBornBytes = 16 << 10;

/// Whether gradients of a parameter are to be computed in their slot.
bool may_be_born(const ParameterGradient& parameter) {
  const at::Tensor& tensor = parameter.parameter();
  return parameter.is_active() && !parameter.is_sparse() && tensor.is_cpu() &&
         tensor.nbytes() >= kLeastBornBytes;
}

}  // namespace

std::shared_ptr<Reducer> Reducer::make(std::vector<Parameter> parameters,
                                       std::shared_ptr<ReplicaGroup> group, Options options) {
  const std::shared_ptr<Reducer> reducer(
      new Reducer(std::move(parameters), std::move(group), std::move(options)));
  reducer->renew_parameters();
  return reducer;
}

Reducer::Reducer(std::vector<Parameter> parameters, std::shared_ptr<ReplicaGroup> group,
                 Options options)
    : group_(std::move(group)),
      options_(std::move(options)),
      progress_(parameters.size()),
      kept_(std::make_unique<KeptPlans>()) {
  for (Parameter& parameter : parameters) {
    names_.push_back(std::move(parameter.name));
    parameters_.push_back(
        std::make_unique<ParameterGradient>(std::move(parameter.tensor), parameter.sparse));
  }
}

Reducer::~Reducer() = default;

/// Looks at all parameters anew, hooks those that autograd has another node for, and goes on with
/// the plan for them if there is one.
void Reducer::renew_parameters() {
  keep_plan();
  order_.clear();
  planned_for_.clear();
  std::vector<size_t> born_bytes(parameters_.size());
  for (size_t index = 0; index < parameters_.size(); ++index) {
    progress_[index].is_ordered = false;
    progress_[index].expected = 1;
    const auto node = parameters_[index]->renew();
    planned_for_.push_back(ParameterKind::of(parameters_[index]->parameter()));
    if (options_.born_gradients && may_be_born(*parameters_[index]))
      born_bytes[index] = parameters_[index]->parameter().nbytes();
    if (!node) continue;
    node->add_pre_hook(std::make_unique<GradientHook>(
        weak_from_this(),
        [this, index](const at::Tensor& gradient) { return take(index, gradient); }));
    node->add_post_hook(std::make_unique<AccumulatedHook>(
        weak_from_this(), [this, index] { on_accumulated(index); }));
  }
  const bool are_born =
      std::any_of(born_bytes.begin(), born_bytes.end(), [](size_t bytes) { return bytes != 0; });
  if (are_born && group_->communicator())
    predictor_ = std::make_shared<AllocationPredictor>(born_bytes);
  take_kept_plan();
}

void Reducer::before_forward() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kRunning) return;  // a forward within backward: activation checkpointing
  tell_of_abandoned();
  end_sharding();
  check_outputs_were_used();
  const bool changed = std::any_of(parameters_.begin(), parameters_.end(),
                                   [](const auto& parameter) { return parameter->has_changed(); });
  if (changed) renew_parameters();
}

void Reducer::after_forward(const std::vector<at::Tensor>& outputs, bool synchronize) {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kRunning) return;  // within backward, which has its end already
  if (synchronize) ++forward_;
  begins_at_parameter_ = synchronize;
  for (const at::Tensor& output : outputs) {
    if (!output.defined()) continue;
    watch(output, synchronize);
    // A view that is changed in place afterwards gets another node than the one hooked here.
    if (output.is_view()) watch(at::Tensor(output._base()), synchronize);
  }
  awaits_outputs_ = synchronize && !begins_at_parameter_;
}

void Reducer::watch(const at::Tensor& output, bool synchronize) {
  if (!output.requires_grad() || output.is_leaf()) return;
  begins_at_parameter_.reset();
  output.register_hook([self = weak_from_this(), synchronize](const at::Tensor&) {
    if (const auto reducer = self.lock()) {
      throwing_through_autograd([&] { reducer->output_has_gradient(synchronize); });
    }
  });
}

void Reducer::forward_failed() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kRunning) return;
  ++forward_;
  forward_failed_ = true;
}

void Reducer::output_has_gradient(bool synchronize) {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kRunning) return;  // a second output, or an inner backward
  if (reaches_parameters()) {
    begin_pass(synchronize);
  } else if (c10::GradMode::is_enabled()) {
    // autograd::grad(), for a gradient penalty: its graph leads past the outputs to the parameters.
    begins_at_parameter_ = synchronize;
  }
}

/// Whether the graph task on this thread may add to p.grad of a parameter.
bool Reducer::reaches_parameters() const {
  return std::any_of(parameters_.begin(), parameters_.end(), [](const auto& parameter) {
    return parameter->is_active() && current_graph_task_runs(parameter->accumulator());
  });
}

/// A backward of a loss that the module keeps, and of nothing that its forward returned, is local.
void Reducer::check_outputs_were_used() {
  awaits_outputs_ = false;
  if (!std::exchange(outputs_were_passed_by_, false)) return;
  throw InvalidArgument(
      "gradients of the last backward stayed those of this rank alone.",
      "its loss was made of nothing that the forward before it returned, which tells that they are "
      "to be averaged.",
      "return the loss, or what it is made of, from forward; or run a forward whose outputs are "
      "not used under no_grad() or no_sync().");
}

void Reducer::begin_pass(bool synchronize) {
  awaits_outputs_ = false;
  outputs_were_passed_by_ = false;
  tell_of_abandoned();
  forget_dropped_nonfinite();
  if (sharded_ && sharded_->before_backward) sharded_->before_backward();
  const bool adds_up = count_weight();
  has_local_passes_ = !synchronize;
  if (synchronize) begin_backward();
  if (!adds_up) refuse_weight();  // leaves the backward, which the others are told
}

/// The program may have zeroed or mended what an earlier pass has left.
void Reducer::forget_dropped_nonfinite() {
  if (!nonfinite_) return;
  const at::Tensor& gradient = parameters_[*nonfinite_]->parameter().grad();
  if (!gradient.defined() || is_finite(gradient)) nonfinite_.reset();
}

void Reducer::begin_backward() {
  state_ = State::kRunning;
  begin_ns_ = comm::now_ns();
  const auto self = shared_from_this();
  at_end_of_backward(
      [self] {
        const std::lock_guard lock(self->mutex_);
        self->end_backward(0);
      },
      [self, backward = ++backward_] {
        const std::lock_guard lock(self->mutex_);
        if (self->state_ == State::kRunning && self->backward_ == backward) self->abandon();
      });
  if (consumer_) start_buckets();
  watch_allocations_of_backward(true);
  const int task = current_graph_task();
  for (size_t index = 0; index < progress_.size(); ++index) {
    // Inner graph tasks of checkpoints are later ones.
    if (std::exchange(progress_[index].early_task, -1) >= task) count_gradient(index);
  }
}

/// From the begin to the end of a backward.
void Reducer::watch_allocations_of_backward(bool begin) {
  if (!predictor_) return;
  begin ? predictor_->begin() : predictor_->end();
  watch_allocations(begin ? predictor_ : nullptr);
}

/// Moves a gradient into its bucket, if it was not born there. Returns what autograd is to add to
/// p.grad: nothing, unless it has no slot yet.
at::Tensor Reducer::take(size_t index, const at::Tensor& gradient) {
  const std::lock_guard lock(mutex_);
  if (begins_at_parameter_ && state_ != State::kRunning) begin_pass(*begins_at_parameter_);
  if (!gradient.defined()) return gradient;
  ParameterGradient& parameter = *parameters_[index];
  if (state_ == State::kRunning && is_launched(index)) {
    progress_[index].is_late = true;
    return {};
  }
  const bool is_born = parameter.is_born(gradient);
  if (!is_born) {
    copied_bytes_ += static_cast<int64_t>(parameter.parameter().nbytes());
    if (predictor_ && parameter.could_be_born(gradient)) predictor_->learn(index, gradient);
  }
  const double scale = loss_weight_.value_or(1);
  // With create_graph=True p.grad gets a graph of its own; its values are moved at the end.
  // Peers may still store into the slots of a backward that was abandoned.
  if (!parameter.has_slot() || c10::GradMode::is_enabled() || state_ == State::kAbandoned) {
    return scale == 1 ? gradient : gradient * scale;
  }
  if (is_born) {
    parameter.keep_born(gradient, scale);
  } else {
    parameter.take(gradient, scale);
  }
  return {};
}

void Reducer::on_accumulated(size_t index) {
  const std::lock_guard lock(mutex_);
  averages_are_finite_.reset();
  if (!is_launched(index)) check_finite(index);
  count_gradient(index);
}

/// Checks p.grad for Inf and NaN after a pass has added to it, while it is in the cache.
void Reducer::check_finite(size_t index) {
  ParameterGradient& parameter = *parameters_[index];
  const at::Tensor& gradient = parameter.parameter().grad();
  const bool reports = options_.report_nonfinite != NonfinitePolicy::kOff && !nonfinite_;
  const bool records = watches_finite_ && sharded_ && !sharded_->scatter;
  parameter.note_finite(false);
  if (!gradient.defined() || (!reports && !records)) return;
  const size_t terms = records ? static_cast<size_t>(group_->world_size()) : 1;
  if (is_finite(gradient, terms)) {
    parameter.note_finite(true);
  } else if (reports && (terms == 1 || !is_finite(gradient))) {
    nonfinite_ = index;
  }
}

/// What is not in its bucket by now is moved at the end of backward.
void Reducer::count_gradient(size_t index) {
  Progress& progress = progress_[index];
  if (!buckets_ && !std::exchange(progress.is_ordered, true)) order_.push_back(index);
  progress.was_touched = true;
  if (state_ != State::kRunning) {
    progress.early_task = current_graph_task();
    outputs_were_passed_by_ = awaits_outputs_;
    return;
  }
  ++progress.gradients;
  if (!consumer_) return;
  if (progress.gradients == progress.expected && parameters_[index]->is_in_slot())
    mark_ready(index);
  consumer_->progress();
}

bool Reducer::is_launched(size_t index) const {
  return consumer_ && parameters_[index]->has_slot() && is_launched_[progress_[index].bucket];
}

void Reducer::mark_ready(size_t index) {
  Progress& progress = progress_[index];
  if (progress.is_ready) return;
  progress.is_ready = true;
  parameters_[index]->close_slot();
  if (--missing_[progress.bucket] == 0) launch(progress.bucket);
}

/// Launches a full bucket, or leaves it to the one before it in the plan.
void Reducer::launch(size_t bucket) {
  if (consumer_->in_plan_order()) return launch_in_plan_order();
  is_launched_[bucket] = true;
  consumer_->launch(bucket);
}

void Reducer::launch_in_plan_order() {
  for (; next_to_launch_ < missing_.size(); ++next_to_launch_) {
    if (is_skipped_[next_to_launch_]) {
      consumer_->skip(next_to_launch_);
    } else if (missing_[next_to_launch_] == 0) {
      is_launched_[next_to_launch_] = true;
      consumer_->launch(next_to_launch_);
    } else {
      return;
    }
  }
}

BucketPlan Reducer::plan() const {
  const std::lock_guard lock(mutex_);
  return buckets_ ? buckets_->plan() : BucketPlan();
}

int Reducer::leader() const {
  const std::lock_guard lock(mutex_);
  return leader_;
}

bool Reducer::has_dropped_gradients() const {
  const std::lock_guard lock(mutex_);
  return has_dropped_gradients_;
}

bool Reducer::has_averages() const {
  const std::lock_guard lock(mutex_);
  return has_averages_;
}

bool Reducer::has_joined_ranks() const {
  const std::lock_guard lock(mutex_);
  return has_joined_ranks_;
}

std::shared_ptr<const Buckets> Reducer::buckets() const {
  const std::lock_guard lock(mutex_);
  return buckets_;
}

bool Reducer::has_local_passes() const {
  const std::lock_guard lock(mutex_);
  return has_local_passes_;
}

bool Reducer::is_weighted() const {
  const std::lock_guard lock(mutex_);
  return loss_weight_.has_value();
}

double Reducer::divisor() const {
  const std::lock_guard lock(mutex_);
  return divisor_;
}

void Reducer::move_into_slots() {
  const std::lock_guard lock(mutex_);
  for (const auto& parameter : parameters_) {
    if (parameter->has_slot()) parameter->move_into_slot();
  }
}

void Reducer::watch_finite(bool watches) {
  const std::lock_guard lock(mutex_);
  watches_finite_ = watches;
}

bool Reducer::has_seen_averages() const {
  const std::lock_guard lock(mutex_);
  return averages_are_finite_.has_value();
}

std::vector<at::Tensor> Reducer::unchecked_gradients() const {
  const std::lock_guard lock(mutex_);
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters_) {
    const at::Tensor& gradient = parameter->parameter().grad();
    const bool is_seen = sharded_
                             ? parameter->is_known_finite()
                             : averages_are_finite_.value_or(true) && !parameter->is_other_result();
    if (gradient.defined() && !is_seen) gradients.push_back(gradient);
  }
  return gradients;
}

BackwardStats Reducer::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace farandole
