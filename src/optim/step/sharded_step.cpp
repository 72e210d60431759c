// SPDX-License-Identifier: Apache-2.0
// A step: enter with all ranks, update and store what this rank owns, leave with all ranks.
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <sstream>
#include <unordered_set>
#include <utility>

#include "ddp/finite_check.h"
#include "farandole/error.h"
#include "farandole/optim/sharded_optimizer.h"
#include "optim/rules/norm_loops.h"
#include "optim/shards/check_master_weights.h"
#include "optim/shards/flat_parameters.h"
#include "optim/shards/shard_tensors.h"
#include "optim/state/shard_state.h"
#include "optim/step/gradient_sources.h"
#include "optim/step/step_round.h"
#include "optim/step/update_pass.h"
#include "process_group/data_type.h"

namespace farandole {
namespace {

comm::DataType real_type_of(at::ScalarType dtype) {
  return *data_type_of(c10::isComplexType(dtype) ? c10::toRealValueType(dtype) : dtype);
}

/// Ranks compare what clips have left to the step.
std::string text_of(const std::vector<GradientChange>& changes) {
  std::ostringstream text;
  for (const GradientChange& change : changes) {
    const bool is_scale = change.kind == GradientChange::Kind::kScale;
    text << (is_scale ? ", gradients times " : ", gradients clipped at ") << change.value;
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

/// A whole tensor, as yet without what is done to it.
PieceUpdate whole(const at::Tensor& tensor) {
  PieceUpdate update{};
  update.dtype = real_type_of(tensor.scalar_type());
  update.elements = tensor.numel() * (tensor.is_complex() ? 2 : 1);
  return update;
}

std::string description_of(const UpdateRules& rules) {
  std::string text;
  for (const auto& rule : rules) text += (text.empty() ? "" : "; ") + rule->description();
  return text;
}

[[noreturn]] void throw_no_norm(size_t rank) {
  throw StepError("clip_grad_norm_() failed on rank " + std::to_string(rank) + ".",
                  "an exception left it there, and the norm is of the gradients of all ranks.",
                  "fix the cause there; nothing was changed.",
                  {{static_cast<int>(rank)}, "clip_grad_norm_"});
}

}  // namespace

void ShardedOptimizer::step(const UpdateRules& rules) {
  const c10::NoGradGuard no_grad;
  const bool goes_on = enter([&] {
    check_rules(rules);
    make_state(rules);  // while nothing has changed that would be half done without the memory
    return description_of(rules);
  });
  if (!goes_on) return;
  const bool is_layer_wise =
      std::any_of(rules.begin(), rules.end(), [](const auto& rule) { return rule->sums() > 0; });
  if (is_layer_wise) {
    if (!measure(rules)) return;
  } else {
    within_step([&] {
      make_state(rules);  // of newly_trainable
      make_updates(rules);
    });
  }
  within_step([&] { pass_->update(*updates_); });
  count_step();
  leave();
}

/// Sums over whole parameters, for which all ranks wait. If it fails on one, the step ends on all
/// before a parameter has changed, and all throw.
bool ShardedOptimizer::measure(const UpdateRules& rules) {
  sums_.assign(parameters_.size() * kMostSums, 0);
  std::exception_ptr error;
  std::string text;
  try {
    make_state(rules);
    make_updates(rules);
    pass_->measure(*updates_);
  } catch (const std::exception& failure) {
    error = std::current_exception();
    text = failure.what();
  }
  bool is_measured = false;
  within_step([&] { is_measured = share_sums(error != nullptr); });
  if (is_measured) return true;
  updates_->clear();
  gradients_->release();
  if (error) {
    round_->fail(text);
    std::rethrow_exception(error);
  }
  round_->leave();  // throws
  return false;
}

bool ShardedOptimizer::begin_step(const std::string& description) {
  const c10::NoGradGuard no_grad;
  const bool goes_on = enter([&] {
    check_keeps_masters(master_weights_);
    return description;
  });
  if (!goes_on) return false;
  within_step([&] {
    make_masters();
    make_shard_tensors();
    make_updates({});
    collect_gradients();
  });
  return parts_.size() != parts_shown_;
}

/// Until record_ is reset. Costs no memory and nearly no time where nobody profiles.
void ShardedOptimizer::begin_record() {
  record_.reset();
  auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (!callbacks) return;
  record_ = std::make_unique<at::RecordFunction>(std::move(*callbacks));
  record_->before("farandole:sharded_step");
}

/// What is thrown between enter() and leave() is told to the others.
void ShardedOptimizer::within_step(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    fail_step(error.what());
    throw;
  }
}

/// The averages of this rank's pieces, as the gradients of shards().
void ShardedOptimizer::collect_gradients() {
  std::vector<void*> averages;
  for (Part& part : parts_) {
    const auto& pieces = part.flat->pieces();
    for (size_t i = 0; i < pieces.size(); ++i) {
      const at::Tensor& shard = part.tensors->tensor(i);
      if (!tensors_[part.parameters[pieces[i].parameter]].grad().defined()) {
        shard.mutable_grad() = at::Tensor();
        continue;
      }
      averages.push_back(part.tensors->gradient(i).mutable_data_ptr());
      shard.mutable_grad() = part.tensors->gradient(i);
    }
  }
  pass_->collect(*updates_, averages);
}

void ShardedOptimizer::end_step() {
  const c10::NoGradGuard no_grad;
  if (!round_->is_inside()) {
    throw InvalidArgument("end_step() was called outside of a step.", "it ends one.",
                          "call begin_step() first.");
  }
  within_step([&] {
    for (Part& part : parts_) part.tensors->bring_home();
    pass_->store(*updates_);
  });
  count_step();
  leave();
}

void ShardedOptimizer::fail_step(const std::string& error) noexcept {
  const bool was_inside = round_->is_inside();
  scaled_.reset();
  was_left_out_ = false;
  try {
    wait();
    if (was_inside) {
      pass_->store(*updates_);  // what there is, so that parameters are alike on all ranks
      updates_->clear();
      count_step();  // as the others do
    } else if (replica() != nullptr) {
      replica()->reducer()->end_abandoned();  // peers may still wait in that backward
    }
  } catch (const std::exception&) {  // the group is over, or the others met another error
  }
  gradients_->release();
  round_->fail(error);
  try {
    if (was_inside) send_shards();
  } catch (const std::exception&) {  // likewise
  }
  record_.reset();
}

/// Until all ranks are here, and agree. False if they leave the step out.
bool ShardedOptimizer::enter(const std::function<std::string()>& describe) {
  const std::optional<ScaledStep> scaled = std::exchange(scaled_, {});
  was_left_out_ = false;
  begin_record();
  StepReport report;
  try {
    prepare();
    report.description =
        describe() + text_of(master_weights_) + text_of(*changes_) + text_of(scaled);
    for (const Parameter& parameter : parameters_) {
      report.has_gradient.push_back(parameter.tensor.grad().defined());
    }
    if (scaled) {
      // What was unscaled in place is all changed, and known; so is what has travelled.
      const bool checks_finite = !scaled->is_finite || averages_in_step();
      const bool is_finite = scaled->is_finite.value_or(true);
      report.leaves_out = !is_finite || (checks_finite && !own_gradients_are_finite());
    }
    if (!are_values_known_) report.parameters = hash_of_parameters(/*with_values=*/true);
    if (replica() != nullptr) {
      replica()->reducer()->watch_finite(scaled.has_value());
    }
  } catch (const std::exception& error) {
    fail_step(error.what());
    throw;
  }
  try {
    was_left_out_ = !round_->enter(report);
  } catch (...) {
    gradients_->release();
    record_.reset();
    throw;
  }
  are_values_known_ = true;
  if (was_left_out_) {
    gradients_->release();
    changes_->clear();
    record_.reset();
    return false;
  }
  if (scaled && scaled->factor != 1) {
    changes_->push_back({GradientChange::Kind::kScale, scaled->factor});
  }
  within_step([&] { plan_newcomers(); });
  return true;
}

/// After prepare(). Each rank checks_finite at another part of what was not seen in backward: with
/// kShard where memory is shared at its own gradients, which peers may not read before the step;
/// else at the averages that it owns, and at what the program has changed.
bool ShardedOptimizer::own_gradients_are_finite() {
  const bool are_own = averages_in_step();
  std::unordered_set<const c10::TensorImpl*> unseen;
  const bool was_watched = !scatter_ && replica() != nullptr;
  bool are_seen = false;
  if (was_watched) {
    const Reducer& reducer = *replica()->reducer();
    for (const at::Tensor& gradient : reducer.unchecked_gradients()) {
      unseen.insert(gradient.unsafeGetTensorImpl());
    }
    // Ranks of other groups do not tell what they have seen.
    are_seen = replica()->shared_group() == group_ && reducer.has_seen_averages();
  }
  updates_->clear();
  addresses_.clear();
  if (!are_own && !are_seen) make_updates({});
  bool are_all = true;
  for (const Parameter& parameter : parameters_) {
    const at::Tensor& gradient = parameter.tensor.grad();
    const bool is_unseen =
        was_watched ? unseen.count(gradient.unsafeGetTensorImpl()) != 0 : are_own;
    if (!gradient.defined() || !is_unseen) continue;
    if (!gradient.is_non_overlapping_and_dense()) {
      are_all = are_all && is_finite(gradient);
      continue;
    }
    PieceUpdate update = whole(gradient);
    update.gradient = {update.dtype, nullptr, 1, 1, changes_.get()};
    addresses_.push_back(gradient.const_data_ptr());
    updates_->push_back(update);
  }
  set_addresses();
  const size_t terms = are_own ? static_cast<size_t>(world_size()) : 1;
  are_all = pass_->are_gradients_finite(*updates_, terms) && are_all;
  updates_->clear();
  return are_all;
}

void ShardedOptimizer::expect_scaled(const ScaledStep& scaled) {
  scaled_ = scaled;
  was_left_out_ = false;
}

bool ShardedOptimizer::unscale(double factor) {
  const c10::NoGradGuard no_grad;
  prepare();
  const bool are_finite = own_gradients_are_finite();
  gradients_->release();
  changes_->push_back({GradientChange::Kind::kScale, factor});
  return are_finite;
}

bool ShardedOptimizer::all_agree(bool yes) const {
  const std::vector<double> all = all_gather_numbers({yes ? 1.0 : 0.0});
  return std::count(all.begin(), all.end(), 1) == world_size();
}

/// What this rank can look after alone.
void ShardedOptimizer::prepare() {
  wait();
  if (previous_group_) {
    throw InvalidArgument("a rebuild of the optimizer was begun and has not ended.",
                          "an exception left it, and its ranks are not planned for.",
                          "call rebuild() again on every rank.");
  }
  if (replica() != nullptr && mode_ == GradientMode::kShard &&
      replica()->shared_group() != group_) {
    throw InvalidArgument("the DistributedDataParallel has other ranks than its optimizer.",
                          "set_process_group() was called since the optimizer was made.",
                          "call rebuild() of the optimizer on every rank.");
  }
  for (Part& part : parts_) part.flat->bring_home();
  gradients_->look(tensors_, names_);
}

/// Parameters that were frozen and now have a gradient. Collective if there are any.
void ShardedOptimizer::plan_newcomers() {
  std::vector<size_t> newly_trainable;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].part == kNone && parameters_[i].tensor.grad().defined()) {
      newly_trainable.push_back(i);
    }
  }
  if (newly_trainable.empty()) return;
  plan(newly_trainable);
  all_gather_numbers({0});  // nobody stores into a parameter that its rank still moves in
}

void ShardedOptimizer::check_rules(const UpdateRules& rules) const {
  for (const auto& rule : rules) {
    if (rule && rule->sums() <= static_cast<int>(kMostSums)) continue;
    throw InvalidArgument("step() got a rule that measures more than " + std::to_string(kMostSums) +
                              " sums, or none.",
                          "there is room for as many of each parameter.", "measure fewer.");
  }
  if (rules.size() != groups_.size()) {
    throw InvalidArgument("step() got " + std::to_string(rules.size()) + " rules for " +
                              std::to_string(groups_.size()) + " parameter groups.",
                          "each group has one.", "pass as many.");
  }
  for (const Parameter& parameter : parameters_) {
    if (parameter.tensor.is_cpu()) continue;
    throw NotSupported(
        "parameter '" + parameter.name + "' is on " + parameter.tensor.device().str() + ".",
        "the fused rules of this version run on CPUs.",
        "use a torch.optim class that runs there, through begin_step().");
  }
}

/// Fills updates_ with this rank's pieces of the parameters that have gradients.
void ShardedOptimizer::make_updates(const UpdateRules& rules) {
  updates_->clear();
  auto forget_half_made = c10::make_scope_exit([this] { updates_->clear(); });
  addresses_.clear();
  sums_.reserve(parameters_.size() * kMostSums + 1);  // and one that share_sums() adds
  sums_.assign(parameters_.size() * kMostSums, 0);
  const double divisor = gradients_->divisor();
  std::vector<std::vector<std::string>> states;  // of each group
  for (const auto& rule : rules) states.push_back(rule->state_names());
  for (Part& part : parts_) {
    const ShardPlan& plan = part.flat->plan();
    for (const ShardPiece& piece : part.flat->pieces()) {
      const size_t index = part.parameters[piece.parameter];
      const Parameter& parameter = parameters_[index];
      if (!parameter.tensor.grad().defined()) continue;
      const at::ScalarType dtype = plan.buckets.buckets[piece.bucket].dtype;
      PieceUpdate update{};
      update.dtype = real_type_of(dtype);
      update.elements = piece.elements * (c10::isComplexType(dtype) ? 2 : 1);
      update.gradient = {real_type_of(gradients_->dtype_of(piece.bucket, dtype)), nullptr,
                         gradients_->count(), divisor, changes_.get()};
      gradients_->append(index, piece.parameter_offset, piece.bucket, piece.shard_offset,
                         addresses_);
      update.parameter = part.flat->address_of(piece, rank());
      for (int peer = 0; part.flat->is_shared() && peer < world_size(); ++peer) {
        if (peer == rank()) continue;
        addresses_.push_back(part.flat->address_of(piece, peer));
        ++update.peer_count;
      }
      if (part.has_masters && c10::isReducedFloatingType(dtype)) {
        update.master = static_cast<float*>(part.state->address(kMasterParameter, piece));
      }
      if (!rules.empty()) {
        update.rule = rules[parameter.group].get();
        for (const std::string& name : states[parameter.group]) {
          addresses_.push_back(part.state->address(name, piece));
          ++update.state_count;
        }
        update.context = {parameter.steps + 1, !parameter.has_state, nullptr};
        if (master_weights_.stochastic_rounding && dtype == at::kBFloat16) {
          update.rounding = StochasticRounding{
              rounding_key(master_weights_.rounding_seed, update.context.step, index),
              static_cast<uint64_t>(piece.parameter_offset)};
        }
        if (update.rule->sums() > 0) update.sums = &sums_[index * kMostSums];
      }
      updates_->push_back(update);
    }
  }
  if (rules.empty() && !round_->is_inside() && rank() == 0) add_newly_trainable();
  set_addresses();
  forget_half_made.release();
}

/// Parameters that nobody owns yet, whole: rank 0 counts them in a norm.
void ShardedOptimizer::add_newly_trainable() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& tensor = parameters_[i].tensor;
    if (parameters_[i].part != kNone || !tensor.grad().defined()) continue;
    PieceUpdate update = whole(tensor);
    update.gradient = {update.dtype, nullptr, gradients_->count(), gradients_->divisor(),
                       changes_.get()};
    gradients_->append(i, 0, 0, 0, addresses_);
    updates_->push_back(update);
  }
}

/// Now that addresses_ does not grow any more.
void ShardedOptimizer::set_addresses() {
  const void* const* next = addresses_.data();
  for (PieceUpdate& update : *updates_) {
    update.gradient.sources = next;
    next += update.gradient.count;
    update.peers = reinterpret_cast<std::byte* const*>(const_cast<void* const*>(next));
    next += update.peer_count;
    update.states = reinterpret_cast<std::byte* const*>(const_cast<void* const*>(next));
    next += update.state_count;
  }
}

/// Sums over whole parameters: those of all ranks, in rank order. False if a rank has failed.
bool ShardedOptimizer::share_sums(bool has_failed) {
  const size_t count = sums_.size();
  sums_.push_back(has_failed ? 1 : 0);
  const std::vector<double> all = all_gather_numbers(sums_);
  sums_.assign(count, 0);  // where updates_ point to
  for (size_t first = 0; first < all.size(); first += count + 1) {
    if (all[first + count] != 0) return false;
    for (size_t i = 0; i < count; ++i) sums_[i] += all[first + i];
  }
  for (PieceUpdate& update : *updates_) update.context.sums = update.sums;
  return true;
}

/// Of every rank, in rank order.
std::vector<double> ShardedOptimizer::all_gather_numbers(const std::vector<double>& numbers) const {
  std::vector<double> all(numbers.size() * static_cast<size_t>(world_size()));
  if (const auto communicator = group_->communicator()) {
    communicator->all_gather(numbers.data(), all.data(), numbers.size(), comm::DataType::kFloat64);
    return all;
  }
  std::vector<std::byte> bytes(numbers.size() * sizeof(double));
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  bytes = group_->all_gather(bytes);
  std::memcpy(all.data(), bytes.data(), bytes.size());
  return all;
}

/// Also tells autograd that the parameters have changed.
void ShardedOptimizer::count_step() {
  for (Parameter& parameter : parameters_) {
    if (!parameter.tensor.grad().defined()) continue;
    ++parameter.steps;
    parameter.has_state = true;
    torch::autograd::impl::bump_version(parameter.tensor);
  }
  changes_->clear();
}

void ShardedOptimizer::leave() {
  const auto end_record = c10::make_scope_exit([this] { record_.reset(); });
  updates_->clear();
  gradients_->release();
  try {
    round_->leave();
  } catch (const StepError&) {
    send_shards();  // as the rank that failed does: parameters are alike on all ranks
    throw;
  }
  send_shards();
}

/// Where memory is not shared.
void ShardedOptimizer::send_shards() {
  for (const Part& part : parts_) {
    if (part.flat->is_shared()) continue;
    for (auto& work : part.flat->gather()) works_.push_back(std::move(work));
  }
  const bool is_awaited = replica() != nullptr && replica()->shared_group() == group_;
  if (!is_awaited) wait();
}

void ShardedOptimizer::wait() {
  for (const auto& work : std::exchange(works_, {})) work->wait();
}

/// A backward adds to gradients that a clip has changed, but for what is still to be done to them.
void ShardedOptimizer::before_backward() {
  if (changes_->empty()) return;
  const c10::NoGradGuard no_grad;
  const bool has_gradients =
      std::any_of(parameters_.begin(), parameters_.end(),
                  [](const Parameter& parameter) { return parameter.tensor.grad().defined(); });
  double factor = 1;
  for (const GradientChange& change : *changes_) {
    if (!has_gradients) break;
    if (change.kind == GradientChange::Kind::kClamp) {
      throw InvalidArgument(
          "a backward came between clip_grad_value_() and step().",
          "with gradients=\"shard\" values are clipped when step() has averaged them.",
          "clip after the last backward of a step, or zero the gradients.");
    }
    factor *= change.value;
  }
  changes_->clear();
  for (const Parameter& parameter : parameters_) {
    if (parameter.tensor.grad().defined()) parameter.tensor.mutable_grad().mul_(factor);
  }
}

/// Throws if there can be no such norm.
void ShardedOptimizer::check_norm(double max_norm, double norm_type) const {
  if (!(norm_type > 0) || std::isnan(max_norm)) {
    throw InvalidArgument("clip_grad_norm_() got max_norm " + std::to_string(max_norm) +
                              " and norm_type " + std::to_string(norm_type) + ".",
                          "the norm is (sum |g|^p)^(1/p), and its bound a number.",
                          "pass a norm_type above 0, or infinity.");
  }
  const bool has_complex = std::any_of(tensors_.begin(), tensors_.end(),
                                       [](const at::Tensor& each) { return each.is_complex(); });
  if (norm_type != 2 && has_complex) {
    throw NotSupported(
        "clip_grad_norm_() got complex parameters and norm_type " + std::to_string(norm_type) + ".",
        "their gradients are pairs of reals here, which have the same 2-norm and no "
        "other.",
        "pass norm_type 2.");
  }
}

double ShardedOptimizer::clip_grad_norm(double max_norm, double norm_type,
                                        bool error_if_nonfinite) {
  check_norm(max_norm, norm_type);
  const c10::NoGradGuard no_grad;
  const double term = average_norm_term(norm_type);
  const double norm = std::isinf(norm_type) ? term : std::pow(term, 1 / norm_type);
  if (error_if_nonfinite && !std::isfinite(norm)) {
    throw InvalidArgument("the norm of the gradients is " + std::to_string(norm) + ".",
                          "a gradient has Inf or NaN, on some rank.",
                          "look for its cause, skip the step on all ranks, or pass "
                          "error_if_nonfinite=False.");
  }
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1) return norm;
  if (mode_ == GradientMode::kShard) {
    changes_->push_back({GradientChange::Kind::kScale, factor});
    return norm;
  }
  for (const Parameter& parameter : parameters_) {
    if (parameter.tensor.grad().defined()) parameter.tensor.mutable_grad().mul_(factor);
  }
  return norm;
}

void ShardedOptimizer::clip_grad_value(double clip_value) {
  if (!(clip_value >= 0)) {
    throw InvalidArgument("clip_grad_value_() got " + std::to_string(clip_value) + ".",
                          "elements are brought into [-clip_value, clip_value].",
                          "pass a number of at least 0.");
  }
  const bool has_complex = std::any_of(tensors_.begin(), tensors_.end(),
                                       [](const at::Tensor& each) { return each.is_complex(); });
  if (has_complex) {
    throw NotSupported("clip_grad_value_() got complex parameters.",
                       "complex numbers have no order in which one could be too large.",
                       "use clip_grad_norm_().");
  }
  if (mode_ == GradientMode::kShard) {
    changes_->push_back({GradientChange::Kind::kClamp, clip_value});
    return;
  }
  const c10::NoGradGuard no_grad;
  for (const Parameter& parameter : parameters_) {
    if (!parameter.tensor.grad().defined()) continue;
    parameter.tensor.mutable_grad().clamp_(-clip_value, clip_value);
  }
}

/// Of the averaged gradients of all parameters. Each rank adds up what it owns, between two points
/// at which all ranks are: nobody changes a gradient that another still reads.
double ShardedOptimizer::average_norm_term(double norm_type) {
  try {
    prepare();
  } catch (const std::exception&) {
    all_gather_numbers({1});
    throw;
  }
  const std::vector<double> failures = all_gather_numbers({0});
  const auto failed = std::find(failures.begin(), failures.end(), 1);
  if (failed != failures.end()) throw_no_norm(static_cast<size_t>(failed - failures.begin()));
  double own = 0;
  std::exception_ptr error;
  try {
    make_updates({});
    own = pass_->norm_term_of_gradients(*updates_, norm_type);
  } catch (const std::exception&) {
    error = std::current_exception();  // which the others wait for
  }
  updates_->clear();
  gradients_->release();
  const std::vector<double> terms = all_gather_numbers({own, error ? 1.0 : 0.0});
  if (error) std::rethrow_exception(error);
  double term = 0;
  for (size_t rank = 0; rank < terms.size() / 2; ++rank) {
    if (terms[2 * rank + 1] != 0) throw_no_norm(rank);
    term = joined_terms(term, terms[2 * rank], norm_type);
  }
  return term;
}

}  // namespace farandole
