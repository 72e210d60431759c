// SPDX-License-Identifier: Apache-2.0
#include "optim/step/step_pieces.h"

#include <c10/util/ScopeExit.h>

#include <string>

#include "optim/step/most_sums.h"
#include "process_group/data_type.h"

namespace farandole {
namespace {

comm::DataType real_type_of(at::ScalarType dtype) {
  return *data_type_of(c10::isComplexType(dtype) ? c10::toRealValueType(dtype) : dtype);
}

/// A piece that is a whole tensor, without addresses.
StepPiece whole(const at::Tensor& tensor) {
  StepPiece piece{};
  piece.dtype = real_type_of(tensor.scalar_type());
  piece.elements = tensor.numel() * (tensor.is_complex() ? 2 : 1);
  return piece;
}

}  // namespace

void StepPieces::clear() {
  pieces_.clear();
  addresses_.clear();
}

void StepPieces::reset_sums() {
  const size_t count = layout_.parameters().size() * kMostSums;
  sums_.reserve(count + 1);  // one more for share_sums()
  sums_.assign(count, 0);
}

void StepPieces::make(const UpdateRules& rules, const GradientSources& gradients,
                      const std::vector<GradientChange>& changes) {
  clear();
  auto forget_half_made = c10::make_scope_exit([this] { clear(); });
  reset_sums();
  const double divisor = gradients.divisor();
  state_names_.clear();
  for (const auto& rule : rules) state_names_.push_back(rule->state_names());
  for (const ShardLayout::Part& part : layout_.parts()) {
    const ShardPlan& plan = part.flat->plan();
    for (const ShardPiece& piece : part.flat->pieces()) {
      const size_t index = part.parameters[piece.parameter];
      const ShardLayout::Parameter& parameter = layout_.parameters()[index];
      if (!parameter.tensor.grad().defined()) continue;
      const at::ScalarType dtype = plan.buckets.buckets[piece.bucket].dtype;
      StepPiece update{};
      update.dtype = real_type_of(dtype);
      update.elements = piece.elements * (c10::isComplexType(dtype) ? 2 : 1);
      update.gradient = {real_type_of(gradients.dtype_of(piece.bucket, dtype)), nullptr,
                         gradients.count(), divisor, &changes};
      gradients.append(index, piece.parameter_offset, piece.bucket, piece.shard_offset, addresses_);
      update.parameter = part.flat->address_of(piece, ranks_.rank());
      for (int peer = 0; part.flat->is_shared() && peer < ranks_.world_size(); ++peer) {
        if (peer == ranks_.rank()) continue;
        addresses_.push_back(part.flat->address_of(piece, peer));
        ++update.peer_count;
      }
      if (part.has_masters && c10::isReducedFloatingType(dtype)) {
        update.master = static_cast<float*>(part.state->address(kMasterParameter, piece));
      }
      if (!rules.empty()) add_rule(update, *rules[parameter.group], part, piece);
      pieces_.push_back(update);
    }
  }
  forget_half_made.release();
}

/// The rule of a piece, its state arrays, and how the result is rounded.
void StepPieces::add_rule(StepPiece& update, const UpdateRule& rule, const ShardLayout::Part& part,
                          const ShardPiece& piece) {
  const size_t index = part.parameters[piece.parameter];
  const ShardLayout::Parameter& parameter = layout_.parameters()[index];
  const MasterWeightOptions& options = layout_.master_weights();
  update.rule = &rule;
  for (const std::string& name : state_names_[parameter.group]) {
    addresses_.push_back(part.state->address(name, piece));
    ++update.state_count;
  }
  update.context = {parameter.steps + 1, !parameter.has_state, nullptr};
  if (options.stochastic_rounding && parameter.tensor.scalar_type() == at::kBFloat16) {
    update.rounding =
        StochasticRounding{rounding_key(options.rounding_seed, update.context.step, index),
                           static_cast<uint64_t>(piece.parameter_offset)};
  }
  if (rule.sums() > 0) update.sums = &sums_[index * kMostSums];
}

void StepPieces::add_newly_trainable(const GradientSources& gradients,
                                     const std::vector<GradientChange>& changes) {
  for (const size_t index : layout_.newly_trainable()) {
    StepPiece piece = whole(layout_.tensors()[index]);
    piece.gradient = {piece.dtype, nullptr, gradients.count(), gradients.divisor(), &changes};
    gradients.append(index, 0, 0, 0, addresses_);
    pieces_.push_back(piece);
  }
}

void StepPieces::add_gradient(const at::Tensor& gradient,
                              const std::vector<GradientChange>& changes) {
  StepPiece piece = whole(gradient);
  piece.gradient = {piece.dtype, nullptr, 1, 1, &changes};
  addresses_.push_back(gradient.const_data_ptr());
  pieces_.push_back(piece);
}

/// Sets the pointers into addresses_, which does not grow any more.
const std::vector<StepPiece>& StepPieces::complete() {
  const void* const* next = addresses_.data();
  for (StepPiece& piece : pieces_) {
    piece.gradient.sources = next;
    next += piece.gradient.count;
    piece.peers = reinterpret_cast<std::byte* const*>(const_cast<void* const*>(next));
    next += piece.peer_count;
    piece.states = reinterpret_cast<std::byte* const*>(const_cast<void* const*>(next));
    next += piece.state_count;
  }
  return pieces_;
}

bool StepPieces::share_sums(bool has_failed) {
  const size_t count = sums_.size();
  sums_.push_back(has_failed ? 1 : 0);
  const std::vector<double> all = ranks_.all_gather(sums_);
  sums_.assign(count, 0);  // where pieces_ point to
  for (size_t first = 0; first < all.size(); first += count + 1) {
    if (all[first + count] != 0) return false;
  }
  for (const int rank : ranks_.sharers()) {
    const double* const of_rank = all.data() + static_cast<size_t>(rank) * (count + 1);
    for (size_t i = 0; i < count; ++i) sums_[i] += of_rank[i];
  }
  for (StepPiece& piece : pieces_) piece.context.sums = piece.sums;
  return true;
}

}  // namespace farandole
