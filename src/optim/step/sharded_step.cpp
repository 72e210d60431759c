// SPDX-License-Identifier: Apache-2.0
#include "optim/step/sharded_step.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <sstream>
#include <unordered_set>
#include <utility>

#include "ddp/finite_check.h"
#include "farandole/error.h"
#include "kernels/norm_kernels.h"
#include "optim/shards/check_master_weights.h"
#include "optim/step/most_sums.h"
#include "process_group/device/stream_capture.h"
#include "process_group/torch_compat.h"

namespace farandole {
namespace {

/// The changes that clips have left to the step, as text that ranks compare.
std::string text_of(const std::vector<GradientChange>& changes) {
  std::ostringstream text;
  for (const GradientChange& change : changes) {
    switch (change.kind) {
      case GradientChange::Kind::kScale:
        text << ", gradients times ";
        break;
      case GradientChange::Kind::kClamp:
        text << ", gradients clipped at ";
        break;
      case GradientChange::Kind::kNorm:
        text << ", gradients clipped to norm ";
        break;
    }
    text << change.value;
  }
  return text.str();
}

std::string text_of(const std::optional<ScaledStep>& scaled) {
  if (!scaled) return "";
  std::ostringstream text;
  text << ", gradients at scale " << scaled->scale << " times " << scaled->factor
       << " unless one is Inf or NaN";
  return text.str();
}

std::string description_of(const UpdateRules& rules) {
  std::string text;
  for (const auto& rule : rules) text += (text.empty() ? "" : "; ") + rule->description();
  return text;
}

[[noreturn]] void throw_no_norm(size_t rank) {
  throw StepError(
      "clip-failed", "clip_grad_norm_() failed on rank " + std::to_string(rank) + ".",
      "an exception left the call on that rank, and the norm needs the gradients of all ranks.",
      "fix the cause on that rank; nothing was changed.",
      {{static_cast<int>(rank)}, "clip_grad_norm_"});
}

}  // namespace

ShardedStep::ShardedStep(ShardLayout& layout, const ShardRanks& ranks)
    : layout_(layout), ranks_(ranks), pass_(make_shard_pass(layout, ranks)) {}

ShardedStep::~ShardedStep() = default;

void ShardedStep::set_sources(std::unique_ptr<GradientSources> sources, bool are_scattered) {
  sources_ = std::move(sources);
  pass_ = make_shard_pass(layout_, ranks_);
  are_scattered_ = are_scattered;
}

std::unique_ptr<StepRound> ShardedStep::make_round() const {
  const uint64_t steps = round_ ? round_->step() : 0;
  return std::make_unique<StepRound>(ranks_.everyone(), layout_.names(), steps);
}

std::unique_ptr<StepRound> ShardedStep::set_round(std::unique_ptr<StepRound> round) {
  return std::exchange(round_, std::move(round));
}

void ShardedStep::step(const UpdateRules& rules) {
  const c10::NoGradGuard no_grad;
  const bool goes_on = enter([&] {
    check_rules(rules);
    layout_.make_state(
        rules);  // while nothing has changed that would be half done without the memory
    return description_of(rules);
  });
  if (!goes_on) return;
  const bool is_layer_wise =
      std::any_of(rules.begin(), rules.end(), [](const auto& rule) { return rule->sums() > 0; });
  if (is_layer_wise) {
    if (!measure(rules)) return;
    others_may_store_ = true;
  } else {
    others_may_store_ = true;
    within_step([&] {
      layout_.make_state(rules);  // of newly_trainable
      pass_->make(rules, *sources_, changes_);
    });
  }
  within_step([&] { pass_->update(); });
  count_step();
  leave();
}

/// Measures the sums over whole parameters that layer-wise rules need, for which all ranks wait. If
/// it fails on a rank, the step ends on all ranks before anything has changed, and all throw.
bool ShardedStep::measure(const UpdateRules& rules) {
  pass_->reset_sums();
  std::exception_ptr error;
  std::string text;
  try {
    layout_.make_state(rules);
    pass_->make(rules, *sources_, changes_);
    pass_->measure();
  } catch (const std::exception& failure) {
    error = std::current_exception();
    text = failure.what();
  }
  bool is_measured = false;
  within_step([&] { is_measured = pass_->share_sums(error != nullptr); });
  if (is_measured) return true;
  pass_->clear();
  sources_->release();
  record_.reset();
  forget_scale();
  if (error) {
    round_->fail(text, /*others_may_store=*/false);
    std::rethrow_exception(error);
  }
  round_->leave();  // throws
  return false;
}

/// A repetition of the step gets its scale anew, and the changes of clips from this one.
void ShardedStep::forget_scale() {
  changes_.erase(changes_.begin() + static_cast<ptrdiff_t>(kept_changes_), changes_.end());
}

bool ShardedStep::begin(const std::string& description) {
  const c10::NoGradGuard no_grad;
  const bool goes_on = enter([&] {
    check_keeps_masters(layout_.master_weights());
    return description;
  });
  if (!goes_on) return false;
  others_may_store_ = true;
  within_step([&] {
    layout_.make_masters();
    layout_.make_shard_tensors();
    make_gradient_pieces();
    collect_gradients();
  });
  return true;
}

/// Records the step for a profiler until record_ is reset. Without a profiler it needs no memory
/// and nearly no time.
void ShardedStep::begin_record() {
  record_.reset();
  auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (!callbacks) return;
  record_ = std::make_unique<at::RecordFunction>(std::move(*callbacks));
  record_->before("farandole:sharded_step");
}

/// Runs `work` between enter() and leave(), and reports its exceptions to the other ranks.
void ShardedStep::within_step(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    fail(error.what());
    throw;
  }
}

/// Makes the averages of this rank's pieces the gradients of shards().
void ShardedStep::collect_gradients() {
  std::vector<at::Tensor> averages;
  for (ShardLayout::Part& part : layout_.parts()) {
    const auto& pieces = part.flat->pieces();
    for (size_t i = 0; i < pieces.size(); ++i) {
      const at::Tensor& shard = part.tensors->tensor(i);
      if (!layout_.tensors()[part.parameters[pieces[i].parameter]].grad().defined()) {
        shard.mutable_grad() = at::Tensor();
        continue;
      }
      averages.push_back(part.tensors->gradient(i));
      shard.mutable_grad() = part.tensors->gradient(i);
    }
  }
  pass_->collect(averages);
}

void ShardedStep::end() {
  const c10::NoGradGuard no_grad;
  if (!round_->is_inside()) {
    throw InvalidArgument("no-open-step", "end_step() was called outside of a step.",
                          "it ends a step that begin_step() began.", "call begin_step() first.");
  }
  within_step([&] {
    for (ShardLayout::Part& part : layout_.parts()) part.tensors->move_back();
    pass_->store();
  });
  count_step();
  leave();
}

void ShardedStep::fail(const std::string& error) noexcept {
  const bool was_inside = round_->is_inside();
  scaled_.reset();
  was_left_out_ = false;
  try {
    wait();
    if (was_inside && others_may_store_) {
      pass_->store();  // what there is, so that all ranks have the same
      count_step();    // as on the other ranks
    } else if (was_inside) {
      forget_scale();
    } else if (ranks_.replica() != nullptr) {
      ranks_.replica()->reducer()->end_abandoned();  // peers may still wait in that backward
    }
  } catch (const std::exception&) {  // the group is over, or the others met another error
  }
  pass_->clear();
  sources_->release();
  round_->fail(error, others_may_store_);
  try {
    if (was_inside && others_may_store_) send_shards();
  } catch (const std::exception&) {  // likewise
  }
  record_.reset();
}

/// Waits until all ranks have entered the step with the same arguments. False if they leave the
/// step out.
bool ShardedStep::enter(const std::function<std::string()>& describe) {
  const std::optional<ScaledStep> scaled = std::exchange(scaled_, {});
  was_left_out_ = false;
  others_may_store_ = false;
  begin_record();
  StepReport report;
  try {
    check_not_captured();
    prepare();
    report = report_of(describe(), scaled);
    if (ranks_.replica() != nullptr) {
      ranks_.replica()->reducer()->watch_finite(scaled.has_value());
    }
  } catch (const std::exception& error) {
    fail(error.what());
    throw;
  }
  try {
    was_left_out_ = !round_->enter(report);
  } catch (...) {
    sources_->release();
    record_.reset();
    throw;
  }
  are_values_known_ = true;
  if (was_left_out_) {
    sources_->release();
    changes_.clear();
    record_.reset();
    return false;
  }
  kept_changes_ = changes_.size();
  if (scaled && scaled->factor != 1) {
    changes_.push_back({GradientChange::Kind::kScale, scaled->factor});
  }
  within_step([&] { plan_newly_trainable(); });
  return true;
}

void ShardedStep::check_not_captured() const {
  if (!layout_.is_on_accelerator()) return;
  const c10::Device device = layout_.tensors().front().device();
  if (!is_captured(c10::impl::VirtualGuardImpl(device.type()).getStream(device))) return;
  throw NotSupported(
      "captured-step", "step() of a sharded optimizer cannot be captured into a graph.",
      "ranks compare each step on the host, which also counts it; replays of a graph "
      "would do neither.",
      "capture forward and backward, and call step() after the replay.");
}

StepReport ShardedStep::report_of(const std::string& description,
                                  const std::optional<ScaledStep>& scaled) {
  StepReport report;
  report.description =
      description + text_of(layout_.master_weights()) + text_of(changes_) + text_of(scaled);
  for (const at::Tensor& tensor : layout_.tensors()) {
    report.has_gradient.push_back(tensor.grad().defined());
  }
  if (scaled) {
    // Gradients that were unscaled in place have been checked by that, and so have sent ones.
    const bool checks_finite = !scaled->is_finite || averages_in_step();
    const bool is_finite = scaled->is_finite.value_or(true);
    report.leaves_out = !is_finite || (checks_finite && !own_gradients_are_finite());
  }
  if (!are_values_known_) report.parameters = layout_.fingerprint(/*with_values=*/true);
  return report;
}

/// Gives parameters an owner that were frozen and now have a gradient. Collective if there are any.
void ShardedStep::plan_newly_trainable() {
  const std::vector<size_t> newly_trainable = layout_.newly_trainable();
  if (newly_trainable.empty()) return;
  layout_.plan(newly_trainable, *ranks_.group());
  ranks_.all_gather({0});  // nobody stores into a parameter that its rank still moves in
}

/// Pieces without rules. Before a step rank 0 adds parameters that nobody owns yet.
void ShardedStep::make_gradient_pieces() {
  pass_->make({}, *sources_, changes_);
  if (!round_->is_inside() && ranks_.rank() == 0) pass_->add_newly_trainable(*sources_, changes_);
}

/// Whether p.grad is this rank's own gradient until the step.
bool ShardedStep::averages_in_step() const {
  return ranks_.mode() == GradientMode::kShard && !are_scattered_;
}

/// Checks what was not checked in backward, each rank another part. With kShard in shared memory
/// these are its own gradients, which peers may not read before the step; otherwise the averages
/// that it owns, and gradients that the program has changed. Call after prepare().
bool ShardedStep::own_gradients_are_finite() {
  const bool are_own = averages_in_step();
  std::unordered_set<const c10::TensorImpl*> unseen;
  const bool was_watched = !are_scattered_ && ranks_.replica() != nullptr;
  bool are_seen = false;
  if (was_watched) {
    const Reducer& reducer = *ranks_.replica()->reducer();
    for (const at::Tensor& gradient : reducer.unchecked_gradients()) {
      unseen.insert(gradient.unsafeGetTensorImpl());
    }
    // Ranks of other groups do not report what they have checked.
    are_seen = ranks_.are_of_replica() && reducer.has_seen_averages();
  }
  pass_->clear();
  if (!are_own && !are_seen) make_gradient_pieces();
  bool are_all = true;
  for (const ShardLayout::Parameter& parameter : layout_.parameters()) {
    const at::Tensor& gradient = parameter.tensor.grad();
    const bool is_unseen =
        was_watched ? unseen.count(gradient.unsafeGetTensorImpl()) != 0 : are_own;
    if (!gradient.defined() || !is_unseen) continue;
    if (!gradient.is_non_overlapping_and_dense()) {
      are_all = are_all && is_finite(gradient);
      continue;
    }
    pass_->add_gradient(gradient, changes_);
  }
  const size_t terms = are_own ? static_cast<size_t>(ranks_.world_size()) : 1;
  are_all = pass_->are_gradients_finite(terms) && are_all;
  pass_->clear();
  return are_all;
}

void ShardedStep::expect_scaled(const ScaledStep& scaled) {
  scaled_ = scaled;
  was_left_out_ = false;
}

bool ShardedStep::unscale(double factor) {
  const c10::NoGradGuard no_grad;
  prepare();
  const bool are_finite = own_gradients_are_finite();
  sources_->release();
  changes_.push_back({GradientChange::Kind::kScale, factor});
  return are_finite;
}

/// The part of the entry that needs no other rank.
void ShardedStep::prepare() {
  wait();
  if (ranks_.are_changing()) {
    throw InvalidArgument("rebuild-not-ended",
                          "a rebuild of the optimizer was started and not completed.",
                          "an exception left rebuild(), and there is no plan for the new ranks.",
                          "call rebuild() again on every rank.");
  }
  if (ranks_.replica() != nullptr && ranks_.mode() == GradientMode::kShard &&
      !ranks_.are_of_replica()) {
    throw InvalidArgument("wrapper-ranks",
                          "the DistributedDataParallel and its optimizer have different ranks.",
                          "set_process_group() was called since the optimizer was made.",
                          "call rebuild() of the optimizer on every rank.");
  }
  for (ShardLayout::Part& part : layout_.parts()) part.flat->take_values();
  sources_->look(layout_.tensors(), layout_.names());
}

void ShardedStep::check_rules(const UpdateRules& rules) const {
  for (const auto& rule : rules) {
    if (rule && rule->sums() <= static_cast<int>(kMostSums)) continue;
    throw InvalidArgument(
        "too-many-sums",
        "step() got a rule that needs more than " + std::to_string(kMostSums) + " sums, or none.",
        "there is space for that many sums for each parameter.",
        "use fewer sums, and at least one.");
  }
  if (rules.size() != layout_.group_count()) {
    throw InvalidArgument("rule-count",
                          "step() got " + std::to_string(rules.size()) + " rules for " +
                              std::to_string(layout_.group_count()) + " parameter groups.",
                          "each group needs one rule.",
                          "pass as many rules as there are parameter groups.");
  }
  for (const auto& rule : rules) {
    if (!layout_.is_on_accelerator() || rule->on_device() != nullptr) continue;
    throw NotSupported("rule-device",
                       "step() got the rule " + rule->description() + " for parameters on " +
                           layout_.tensors().front().device().str() + ".",
                       "the rule has a formula for host memory alone.",
                       "give it a DeviceUpdateRule in on_device(), or step shards with an "
                       "optimizer of torch between begin_step() and end_step().");
  }
}

/// Counts the step, and marks the parameters as changed for autograd.
void ShardedStep::count_step() {
  for (ShardLayout::Parameter& parameter : layout_.parameters()) {
    if (!parameter.tensor.grad().defined()) continue;
    ++parameter.steps;
    parameter.has_state = true;
    torch::autograd::impl::bump_version(parameter.tensor);
  }
  changes_.clear();
}

void ShardedStep::leave() {
  const auto end_record = c10::make_scope_exit([this] { record_.reset(); });
  pass_->clear();
  sources_->release();
  try {
    round_->leave();
  } catch (const StepError&) {
    send_shards();  // as the rank that failed does: all ranks get the same parameters
    throw;
  }
  send_shards();
}

/// Sends the new parameters to all ranks, where they do not share memory. Unless the program asked
/// for something else, whoever reads a parameter after step() finds the new one.
void ShardedStep::send_shards() {
  const bool has_outside =
      std::any_of(layout_.parts().begin(), layout_.parts().end(),
                  [](const ShardLayout::Part& part) { return part.flat->has_outside(); });
  const bool waits = has_outside || arrival_ == ParameterArrival::kStep || !ranks_.are_of_replica();
  for (const ShardLayout::Part& part : layout_.parts()) {
    if (part.flat->is_shared()) continue;
    const auto& buckets = part.flat->plan().buckets.buckets;
    for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
      part.flat->gather(bucket, works_);
      if (waits) continue;
      for (const auto& slot : buckets[bucket].slots) {
        needed_[part.flat->parameters()[slot.parameter].unsafeGetTensorImpl()] = works_.size();
      }
    }
  }
  if (waits) wait();
  if (!has_outside) return;
  for (const ShardLayout::Part& part : layout_.parts()) part.flat->publish_outside();
}

void ShardedStep::wait() { wait_until(works_.size()); }

void ShardedStep::wait_for(const std::vector<at::Tensor>& parameters) {
  if (works_.empty()) return;
  size_t works = 0;
  for (const at::Tensor& parameter : parameters) {
    const auto found = needed_.find(parameter.unsafeGetTensorImpl());
    if (found != needed_.end()) works = std::max(works, found->second);
  }
  wait_until(works);
}

void ShardedStep::wait_until(size_t works) {
  try {
    while (arrived_ < works) works_[arrived_++]->wait();
  } catch (...) {
    finish_transfers();
    throw;
  }
  if (arrived_ < works_.size()) return;
  works_.clear();
  needed_.clear();
  arrived_ = 0;
}

void ShardedStep::finish_transfers() noexcept {
  needed_.clear();
  arrived_ = 0;
  for (const auto& work : std::exchange(works_, {})) {
    try {
      work->wait();
    } catch (const std::exception&) {  // the group is over
    }
  }
}

void ShardedStep::before_backward() {
  if (changes_.empty()) return;
  const c10::NoGradGuard no_grad;
  const bool has_gradients = std::any_of(
      layout_.parameters().begin(), layout_.parameters().end(),
      [](const ShardLayout::Parameter& parameter) { return parameter.tensor.grad().defined(); });
  double factor = 1;
  for (const GradientChange& change : changes_) {
    if (!has_gradients) break;
    if (change.kind == GradientChange::Kind::kClamp) {
      throw InvalidArgument(
          "backward-after-clipping", "a backward came between clip_grad_value_() and step().",
          "with gradients=\"shard\" values are clipped in step(), after it has averaged them.",
          "clip after the last backward of a step, or zero the gradients.");
    }
    if (change.kind == GradientChange::Kind::kScale) factor *= change.value;
  }
  for (const ShardLayout::Parameter& parameter : layout_.parameters()) {
    if (!parameter.tensor.grad().defined()) continue;
    parameter.tensor.mutable_grad().mul_(factor);
    for (const GradientChange& change : changes_) {
      if (change.factor.defined()) parameter.tensor.mutable_grad().mul_(change.factor);
    }
  }
  changes_.clear();
}

/// Each rank adds up the pieces that it owns, between two collectives, so that no rank changes a
/// gradient that another one still reads.
at::Tensor ShardedStep::average_norm_term(double norm_type) {
  try {
    prepare();
  } catch (const std::exception&) {
    ranks_.all_gather({1});
    throw;
  }
  const std::vector<double> failures = ranks_.all_gather({0});
  const auto failed = std::find(failures.begin(), failures.end(), 1);
  if (failed != failures.end()) throw_no_norm(static_cast<size_t>(failed - failures.begin()));
  const bool is_on_host = !layout_.is_on_accelerator();
  at::Tensor own;
  at::Tensor all;  // of an accelerator
  std::exception_ptr error;
  try {
    make_gradient_pieces();
    own = pass_->norm_term_of_gradients(norm_type);
    if (!is_on_host) all = at::empty({ranks_.world_size()}, own.options());
  } catch (const std::exception&) {
    error = std::current_exception();  // reported below, where the other ranks wait
  }
  pass_->clear();
  sources_->release();
  const double number = is_on_host && !error ? own.item<double>() : 0;
  const std::vector<double> terms = ranks_.all_gather({number, error ? 1.0 : 0.0});
  if (error) std::rethrow_exception(error);
  for (size_t rank = 0; rank < terms.size() / 2; ++rank) {
    if (terms[2 * rank + 1] != 0) throw_no_norm(rank);
  }
  if (!is_on_host) return joined_on_device(own, all, norm_type);
  double term = 0;
  for (const int rank : ranks_.sharers()) {
    term = joined_terms(term, terms[2 * static_cast<size_t>(rank)], norm_type);
  }
  return at::scalar_tensor(term, at::kDouble);
}

/// Gathers the terms in `all`, which has space for them: the largest number of a reduction may lose
/// a NaN.
at::Tensor ShardedStep::joined_on_device(const at::Tensor& own, at::Tensor all,
                                         double norm_type) const {
  if (ranks_.world_size() == 1) return own;
  const auto work = all_gather_single(*ranks_.group()->group(), all, own.reshape({1}), {});
  if (work) work->wait();
  return std::isinf(norm_type) ? all.max() : all.sum();
}

}  // namespace farandole
