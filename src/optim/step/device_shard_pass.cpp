// SPDX-License-Identifier: Apache-2.0
#include "optim/step/device_shard_pass.h"

#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "ddp/stream_use.h"
#include "farandole/config.h"
#include "log.h"
#include "optim/device/kernel_launch.h"
#include "optim/state/shard_state.h"
#include "optim/step/device_rounding.h"
#include "optim/step/most_sums.h"
#include "process_group/data_type.h"

namespace farandole {
namespace {

/// One dimension of reals, of a tensor whose elements are one after the other in memory.
at::Tensor reals_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.resolve_conj().resolve_neg();
  const at::Tensor elements = flat.as_strided({flat.numel()}, {1});
  return elements.is_complex() ? at::view_as_real(elements).view(-1) : elements;
}

/// Tensors like these of another dtype.
std::vector<at::Tensor> cast_lists(const std::vector<at::Tensor>& tensors, at::ScalarType dtype) {
  std::vector<at::Tensor> results;
  for (const at::Tensor& tensor : tensors) {
    results.push_back(at::empty_like(tensor, tensor.options().dtype(dtype)));
  }
  at::_foreach_copy_(results, tensors);
  return results;
}

std::vector<at::Tensor> with_change(const std::vector<at::Tensor>& gradients,
                                    const GradientChange& change) {
  if (change.kind == GradientChange::Kind::kScale) {
    return at::_foreach_mul(gradients, change.value);
  }
  if (change.kind == GradientChange::Kind::kNorm) {
    return at::_foreach_mul(gradients, change.factor.to(gradients.front().scalar_type()));
  }
  return at::_foreach_clamp_min(at::_foreach_clamp_max(gradients, change.value), -change.value);
}

/// Whether there are kernels for numbers of these types: computed in float64, or in float32.
bool serve(at::ScalarType parameter, at::ScalarType gradient) {
  const auto is_float32_or_half = [](at::ScalarType type) {
    return type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
  };
  if (parameter == at::kDouble) return gradient == at::kDouble;
  return is_float32_or_half(parameter) && is_float32_or_half(gradient);
}

/// Whether steps on `device` run our kernels; if it cannot, one line of the process says why.
bool chooses_kernels(c10::Device device) {
  if (Config::from_environment().device_kernels == DeviceKernelsChoice::kTorch) return false;
  const std::string obstacle = obstacle_to_kernels(device);
  if (obstacle.empty()) return true;
  static const bool once = [&] {
    log(LogLevel::kInfo, "steps of sharded optimizers on " + device.str() +
                             " use torch's operations, not Farandole's kernels: " + obstacle);
    return true;
  }();
  return !once;
}

KernelChange kernel_change(const GradientChange& change) {
  const bool has_factor = change.kind == GradientChange::Kind::kNorm;
  return {change.kind == GradientChange::Kind::kClamp, change.value,
          has_factor ? change.factor.const_data_ptr<double>() : nullptr};
}

}  // namespace

DeviceShardPass::DeviceShardPass(const ShardLayout& layout, const ShardRanks& ranks)
    : layout_(layout),
      ranks_(ranks),
      has_kernels_(chooses_kernels(layout.tensors().front().device())) {}

void DeviceShardPass::make(const UpdateRules& rules, const GradientSources& gradients,
                           const std::vector<GradientChange>& changes) {
  pieces_.clear();
  auto forget_half_made = c10::make_scope_exit([this] { pieces_.clear(); });
  changes_ = &changes;
  for (const GradientChange& change : changes) {  // of a clip, maybe on another stream
    if (change.factor.defined()) keep_for_current_stream(change.factor);
  }
  const double divisor = gradients.divisor();
  for (const ShardLayout::Part& part : layout_.parts()) {
    for (const ShardPiece& piece : part.flat->pieces()) {
      const size_t index = part.parameters[piece.parameter];
      const ShardLayout::Parameter& parameter = layout_.parameters()[index];
      if (!parameter.tensor.grad().defined()) continue;
      Piece made;
      made.index = index;
      made.parameter = reals_of(part.flat->tensor_of(piece));
      made.gradient = reals_of(gradients.tensor_of(index, piece));
      made.divisor = divisor;
      if (part.has_masters) made.master = part.state->piece(kMasterParameter, piece);
      if (!rules.empty()) add_rule(made, *rules[parameter.group], part, piece);
      pieces_.push_back(std::move(made));
    }
  }
  forget_half_made.release();
}

void DeviceShardPass::add_rule(Piece& made, const UpdateRule& rule, const ShardLayout::Part& part,
                               const ShardPiece& piece) const {
  const ShardLayout::Parameter& parameter = layout_.parameters()[made.index];
  const MasterWeightOptions& options = layout_.master_weights();
  made.rule = &rule;
  for (const std::string& name : rule.state_names()) {
    made.states.push_back(reals_of(part.state->piece(name, piece)));
  }
  made.context = {parameter.steps + 1, !parameter.has_state, nullptr};
  if (options.stochastic_rounding && parameter.tensor.scalar_type() == at::kBFloat16) {
    made.rounding =
        StochasticRounding{rounding_key(options.rounding_seed, made.context.step, made.index),
                           static_cast<uint64_t>(piece.parameter_offset)};
  }
}

void DeviceShardPass::add_newly_trainable(const GradientSources& gradients,
                                          const std::vector<GradientChange>& changes) {
  for (const size_t index : layout_.newly_trainable()) {
    const ShardPiece whole{0, 0, 0, 0, 0, layout_.tensors()[index].numel()};
    changes_ = &changes;
    Piece made;
    made.gradient = reals_of(gradients.tensor_of(index, whole));
    made.divisor = gradients.divisor();
    pieces_.push_back(std::move(made));
  }
}

void DeviceShardPass::add_gradient(const at::Tensor& gradient,
                                   const std::vector<GradientChange>& changes) {
  changes_ = &changes;
  Piece made;
  made.gradient = reals_of(gradient);
  pieces_.push_back(std::move(made));
}

/// Pieces that are alike in what operations on lists depend on.
std::vector<DeviceShardPass::Batch> DeviceShardPass::batches() const {
  using Kind = std::tuple<const UpdateRule*, at::ScalarType, at::ScalarType, double, int64_t, bool>;
  std::map<Kind, size_t> known;
  std::vector<Batch> batches;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    if (piece.gradient.numel() == 0) continue;
    const at::ScalarType gradient = piece.gradient.scalar_type();
    const Kind kind{
        piece.rule,         piece.parameter.defined() ? piece.parameter.scalar_type() : gradient,
        gradient,           piece.divisor,
        piece.context.step, piece.context.is_first};
    const auto [found, is_new] = known.try_emplace(kind, batches.size());
    if (is_new) batches.emplace_back();
    batches[found->second].push_back(i);
  }
  return batches;
}

/// The gradients that rules use.
std::vector<at::Tensor> DeviceShardPass::averages(const Batch& batch) const {
  std::vector<at::Tensor> gradients;
  for (const size_t index : batch) gradients.push_back(pieces_[index].gradient);
  const at::ScalarType dtype = gradients.front().scalar_type();
  const double divisor = pieces_[batch.front()].divisor;
  // Averages of half types are rounded, as the result of an all_reduce is.
  if (divisor != 1) gradients = at::_foreach_div(gradients, divisor);
  if (state_dtype_of(dtype) != dtype) gradients = cast_lists(gradients, state_dtype_of(dtype));
  for (const GradientChange& change : *changes_) gradients = with_change(gradients, change);
  return gradients;
}

/// The parameters as rules compute them: their own memory, master weights, or float32 copies.
std::vector<at::Tensor> DeviceShardPass::computed(const Batch& batch) const {
  std::vector<at::Tensor> parameters;
  for (const size_t index : batch) {
    const Piece& piece = pieces_[index];
    parameters.push_back(piece.master.defined() ? piece.master : piece.parameter);
  }
  const at::ScalarType dtype = parameters.front().scalar_type();
  return state_dtype_of(dtype) == dtype ? parameters
                                        : cast_lists(parameters, state_dtype_of(dtype));
}

DeviceUpdate DeviceShardPass::lists(const Batch& batch) const {
  const Piece& first = pieces_[batch.front()];
  DeviceUpdate pieces;
  pieces.parameters = computed(batch);
  pieces.gradients = averages(batch);
  pieces.states.resize(first.states.size());
  for (const size_t index : batch) {
    for (size_t i = 0; i < first.states.size(); ++i) {
      pieces.states[i].push_back(pieces_[index].states[i]);
    }
  }
  pieces.step = first.context.step;
  pieces.is_first = first.context.is_first;
  return pieces;
}

/// Where a parameter is not its rounded master weight, somebody else has set it. For whole shards,
/// which needs fewer operations.
void DeviceShardPass::refresh_masters() const {
  for (const ShardLayout::Part& part : layout_.parts()) {
    const auto& buckets = part.flat->plan().buckets.buckets;
    for (size_t bucket = 0; part.has_masters && bucket < buckets.size(); ++bucket) {
      const at::Tensor master = part.state->array(kMasterParameter, bucket);
      if (!master.defined() || master.numel() == 0) continue;
      const at::Tensor halves = part.flat->own_shard(bucket);
      const at::Tensor rounded = master.to(halves.scalar_type());
      const at::Tensor is_own = rounded.view(at::kShort).eq(halves.view(at::kShort));
      master.copy_(at::where(is_own, master, halves.to(at::kFloat)));
    }
  }
}

void DeviceShardPass::reset_sums() {
  total_.reset();
  sums_.clear();
}

/// What kernels compute for the batch; null if they do not know it.
std::shared_ptr<const RuleFormulas> DeviceShardPass::formulas_of(const Batch& batch) const {
  const Piece& first = pieces_[batch.front()];
  const bool knows = has_kernels_ && changes_->size() <= kKernelChanges &&
                     serve(first.parameter.scalar_type(), first.gradient.scalar_type());
  return knows ? first.rule->on_device()->formulas(first.context) : nullptr;
}

/// For rules. Kernels refresh master weights themselves.
std::vector<DeviceShardPass::RuleBatch> DeviceShardPass::rule_batches() const {
  std::vector<RuleBatch> made;
  bool all_on_kernels = true;
  for (Batch& batch : batches()) {
    auto formulas = formulas_of(batch);
    all_on_kernels = all_on_kernels && formulas != nullptr;
    made.push_back({std::move(batch), std::move(formulas)});
  }
  if (!all_on_kernels) refresh_masters();
  return made;
}

void DeviceShardPass::launch(const Batch& batch, KernelLaunches::Kind kind,
                             const RuleFormulas& formulas) const {
  const Piece& first = pieces_[batch.front()];
  KernelTable table{};
  table.parameter_dtype = *data_type_of(first.parameter.scalar_type());
  table.gradient_dtype = *data_type_of(first.gradient.scalar_type());
  table.rounds_stochastically = first.rounding.has_value();
  table.states = static_cast<uint8_t>(first.states.size());
  table.divisor = first.divisor;
  for (const GradientChange& change : *changes_) {
    table.change[table.changes++] = kernel_change(change);
  }
  KernelLaunches launches(first.parameter.device(), kind, formulas, table);
  for (const size_t index : batch) {
    const Piece& piece = pieces_[index];
    KernelPiece to{};
    to.parameter = piece.parameter.mutable_data_ptr();
    to.gradient = piece.gradient.const_data_ptr();
    to.master = piece.master.defined() ? piece.master.mutable_data_ptr<float>() : nullptr;
    for (size_t i = 0; i < piece.states.size(); ++i) {
      to.states[i] = piece.states[i].mutable_data_ptr();
    }
    if (piece.rule->sums() > 0)
      to.sums = total_.mutable_data_ptr<double>() + piece.index * kMostSums;
    to.elements = piece.parameter.numel();
    if (piece.rounding) {
      to.first_element = piece.rounding->first_element;
      to.key = piece.rounding->key;
    }
    launches.add(to);
  }
  launches.end();
}

void DeviceShardPass::measure() {
  const auto options = layout_.tensors().front().options().dtype(at::kDouble);
  std::vector<at::Tensor> measured(layout_.parameters().size() * kMostSums, at::zeros({}, options));
  const std::vector<RuleBatch> all = rule_batches();
  for (const auto& [batch, formulas] : all) {
    const UpdateRule& rule = *pieces_[batch.front()].rule;
    if (rule.sums() == 0 || formulas != nullptr) continue;
    const auto sums = rule.on_device()->measure_on_device(lists(batch));
    for (size_t sum = 0; sum < sums.size(); ++sum) {
      for (size_t i = 0; i < batch.size(); ++i) {
        measured[pieces_[batch[i]].index * kMostSums + sum] = sums[sum][i];
      }
    }
  }
  total_ = at::stack(measured);
  sums_ = total_.unbind();
  for (const auto& [batch, formulas] : all) {
    const bool measures = formulas != nullptr && pieces_[batch.front()].rule->sums() > 0;
    if (measures) launch(batch, KernelLaunches::Kind::kMeasure, *formulas);
  }
}

/// Whether a rank has failed is told on the CPU; the sums are added up on the device.
bool DeviceShardPass::share_sums(bool has_failed) {
  const std::vector<double> failures = ranks_.all_gather({has_failed ? 1.0 : 0.0});
  if (std::count(failures.begin(), failures.end(), 0) != ranks_.world_size()) return false;
  if (ranks_.world_size() > 1) {
    std::vector<at::Tensor> all{total_};
    const auto work = ranks_.group()->group()->allreduce(all);
    if (work) work->wait();
  }
  return true;
}

void DeviceShardPass::add_sums(const Batch& batch, DeviceUpdate& pieces) const {
  const int sums = pieces_[batch.front()].rule->sums();
  for (size_t sum = 0; sum < static_cast<size_t>(sums); ++sum) {
    pieces.sums.emplace_back();
    for (const size_t index : batch) {
      pieces.sums.back().push_back(sums_[pieces_[index].index * kMostSums + sum]);
    }
  }
}

void DeviceShardPass::update() {
  for (const auto& [batch, formulas] : rule_batches()) {
    if (formulas != nullptr) {
      launch(batch, KernelLaunches::Kind::kUpdate, *formulas);
      continue;
    }
    const UpdateRule& rule = *pieces_[batch.front()].rule;
    DeviceUpdate pieces = lists(batch);
    add_sums(batch, pieces);
    rule.on_device()->update_on_device(pieces);
    round(batch, pieces.parameters);
  }
}

void DeviceShardPass::collect(const std::vector<at::Tensor>& to) {
  refresh_masters();
  for (const Batch& batch : batches()) {
    std::vector<at::Tensor> slots;
    for (const size_t index : batch) slots.push_back(reals_of(to[index]));
    at::_foreach_copy_(slots, averages(batch));
  }
}

void DeviceShardPass::store() {
  for (const Batch& batch : batches()) {
    if (pieces_[batch.front()].master.defined()) round(batch, computed(batch));
  }
}

/// Rounds what was computed to parameters of a half type.
void DeviceShardPass::round(const Batch& batch, const std::vector<at::Tensor>& computed) const {
  std::vector<at::Tensor> to;
  std::vector<at::Tensor> from;
  for (size_t i = 0; i < batch.size(); ++i) {
    const Piece& piece = pieces_[batch[i]];
    if (piece.parameter.is_same(computed[i])) continue;
    to.push_back(piece.parameter);
    from.push_back(piece.rounding ? stochastically_rounded(computed[i], *piece.rounding)
                                  : computed[i]);
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
}

/// The largest absolute value shows an Inf or NaN.
bool DeviceShardPass::are_gradients_finite(size_t /*terms*/) {
  std::vector<at::Tensor> largest;
  for (const Batch& batch : batches()) {
    std::vector<at::Tensor> gradients;
    for (const size_t index : batch) gradients.push_back(pieces_[index].gradient);
    const double power = std::numeric_limits<double>::infinity();
    for (at::Tensor& each : at::_foreach_norm(gradients, power, at::kDouble)) {
      largest.push_back(std::move(each));
    }
  }
  return largest.empty() || at::isfinite(at::stack(largest)).all().item<bool>();
}

at::Tensor DeviceShardPass::norm_term_of_gradients(double power) {
  std::vector<at::Tensor> norms;
  for (const Batch& batch : batches()) {
    for (at::Tensor& each : at::_foreach_norm(averages(batch), power, at::kDouble)) {
      norms.push_back(std::move(each));
    }
  }
  if (norms.empty()) return at::zeros({}, layout_.tensors().front().options().dtype(at::kDouble));
  const at::Tensor all = at::stack(norms);
  return std::isinf(power) ? all.max() : all.pow(power).sum();
}

}  // namespace farandole
