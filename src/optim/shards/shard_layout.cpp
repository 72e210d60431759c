// SPDX-License-Identifier: Apache-2.0
#include "optim/shards/shard_layout.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "farandole/error.h"
#include "optim/shards/check_master_weights.h"
#include "optim/shards/check_parameters.h"

namespace farandole {
namespace {

/// Bytes of a message over groups without shared memory.
constexpr int64_t kBucketBytes = int64_t{25} << 20;

}  // namespace

void ShardLayout::add_group(ShardedOptimizer::ParameterGroup group) {
  std::vector<Parameter> added;
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    const at::Tensor& tensor = group.parameters[i];
    check_parameter(tensor, group.names[i]);
    check_can_be_rounded(master_weights_, tensor.scalar_type(), group.names[i]);
    const auto is_same = [&](const Parameter& other) { return other.tensor.is_same(tensor); };
    if (std::any_of(parameters_.begin(), parameters_.end(), is_same) ||
        std::any_of(added.begin(), added.end(), is_same)) {
      throw InvalidArgument(
          "parameter-twice", "parameter '" + group.names[i] + "' was passed twice.",
          "the optimizer would step it twice.", "pass each parameter in one group only.");
    }
    added.push_back({tensor, std::move(group.names[i]), groups_.size(), i});
  }
  std::vector<at::Tensor> tensors = tensors_;
  std::vector<std::string> names = names_;
  for (const Parameter& parameter : added) {
    tensors.push_back(parameter.tensor);
    names.push_back(parameter.name);
  }
  check_one_device(tensors);
  check_apart(tensors, names);
  std::vector<size_t> indices(added.size());
  std::iota(indices.begin(), indices.end(), parameters_.size());
  parameters_.reserve(parameters_.size() + added.size());
  groups_.push_back(std::move(indices));  // from here on nothing fails
  for (Parameter& parameter : added) parameters_.push_back(std::move(parameter));
  tensors_ = std::move(tensors);
  names_ = std::move(names);
}

void ShardLayout::drop(size_t groups, size_t parts) noexcept {
  while (groups_.size() > groups) {
    for (size_t i = 0; i < groups_.back().size(); ++i) {
      parameters_.pop_back();
      tensors_.pop_back();
      names_.pop_back();
    }
    groups_.pop_back();
  }
  while (parts_.size() > parts) parts_.pop_back();
}

const std::vector<size_t>& ShardLayout::group(size_t index) const {
  if (index < groups_.size()) return groups_[index];
  throw InvalidArgument(
      "no-such-group", "there is no parameter group " + std::to_string(index) + ".",
      "the optimizer has " + std::to_string(groups_.size()) + " groups, counted from 0.",
      "pass the index of one of them.");
}

bool ShardLayout::has_complex() const {
  return std::any_of(tensors_.begin(), tensors_.end(),
                     [](const at::Tensor& each) { return each.is_complex(); });
}

comm::Fingerprint ShardLayout::fingerprint(bool with_values) const {
  comm::FingerprintOfNumbers numbers;
  numbers.add(uint64_t{parameters_.size()});
  for (const Parameter& parameter : parameters_) {
    const at::Tensor& tensor = parameter.tensor;
    numbers.add(static_cast<int64_t>(tensor.scalar_type()));
    numbers.add(static_cast<int64_t>(tensor.device().type()));
    numbers.add(tensor.dim());
    for (const int64_t size : tensor.sizes()) numbers.add(size);
    for (const int64_t stride : Buckets::strides_of_slot(tensor)) numbers.add(stride);
    numbers.add(uint64_t{parameter.group});
    numbers.add(static_cast<uint64_t>(tensor.requires_grad()));
    if (with_values) numbers.add(fingerprint_of_values(tensor));
  }
  return numbers.value();
}

std::vector<size_t> ShardLayout::active(size_t first) const {
  std::vector<size_t> active;
  for (size_t i = first; i < parameters_.size(); ++i) {
    if (parameters_[i].tensor.requires_grad()) active.push_back(i);
  }
  return active;
}

std::vector<size_t> ShardLayout::frozen_with_state() const {
  std::vector<size_t> frozen;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    if (!parameter.tensor.requires_grad() && parameter.steps > 0) frozen.push_back(i);
  }
  return frozen;
}

std::vector<size_t> ShardLayout::newly_trainable() const {
  std::vector<size_t> newly_trainable;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].part == kNone && parameters_[i].tensor.grad().defined()) {
      newly_trainable.push_back(i);
    }
  }
  return newly_trainable;
}

void ShardLayout::plan(const std::vector<size_t>& indices, const ReplicaGroup& group) {
  if (indices.empty()) return;
  std::vector<ShardedParameter> planned;
  std::vector<at::Tensor> tensors;
  std::vector<std::string> names;
  for (const size_t index : indices) {
    const Parameter& parameter = parameters_[index];
    const at::Tensor& tensor = parameter.tensor;
    planned.push_back({{tensor.numel(), tensor.scalar_type(), tensor.device()}, parameter.group});
    tensors.push_back(tensor);
    names.push_back(parameter.name);
  }
  const int world_size = group.world_size();
  const ShardPlan plan =
      make_shard_plan(planned, kBucketBytes, world_size, {partition_, loads(world_size)});
  Part part;
  part.parameters = indices;
  part.flat = std::make_unique<FlatParameters>(tensors, names, plan, group);
  part.state = std::make_unique<ShardState>(plan, group.rank());
  parts_.reserve(parts_.size() + 1);
  for (size_t i = 0; i < indices.size(); ++i) {
    parameters_[indices[i]].part = parts_.size();
    parameters_[indices[i]].index_in_part = i;
  }
  parts_.push_back(std::move(part));
}

/// Elements that each rank owns so far.
std::vector<int64_t> ShardLayout::loads(int world_size) const {
  std::vector<int64_t> loads(static_cast<size_t>(world_size), 0);
  for (const Part& part : parts_) {
    for (int rank = 0; rank < world_size; ++rank) {
      for (const ShardPiece& piece : part.flat->plan().pieces_of(rank)) {
        loads[static_cast<size_t>(rank)] += piece.elements;
      }
    }
  }
  return loads;
}

ShardLayout::Plan ShardLayout::take_plan() {
  Plan plan;
  plan.indices.reserve(parameters_.size());
  for (const Parameter& parameter : parameters_) {
    plan.indices.push_back({parameter.part, parameter.index_in_part});
  }
  for (Parameter& parameter : parameters_) parameter.part = kNone;
  plan.parts = std::exchange(parts_, {});
  return plan;
}

void ShardLayout::put_back(Plan plan) noexcept {
  parts_ = std::move(plan.parts);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].part = plan.indices[i].part;
    parameters_[i].index_in_part = plan.indices[i].in_part;
  }
  for (Part& part : parts_) {
    try {
      part.flat->take_values();
    } catch (const std::exception&) {  // the next step will throw it
    }
  }
}

void ShardLayout::for_each_piece(
    size_t group, const std::function<void(const Part&, size_t, const ShardPiece&)>& call) const {
  this->group(group);  // throws if there is none
  for (const Part& part : parts_) {
    const auto& pieces = part.flat->pieces();
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (part.flat->plan().groups[pieces[i].bucket] == group) call(part, i, pieces[i]);
    }
  }
}

void ShardLayout::make_state(const UpdateRules& rules) {
  make_masters();
  for (Part& part : parts_) {
    const ShardPlan& plan = part.flat->plan();
    for (size_t bucket = 0; bucket < plan.groups.size(); ++bucket) {
      for (const std::string& name : rules[plan.groups[bucket]]->state_names()) {
        if (!part.state->make(name, bucket)) continue;
        for (const auto& slot : plan.buckets.buckets[bucket].slots) {
          parameters_[part.parameters[slot.parameter]].has_state = false;
        }
      }
    }
  }
}

void ShardLayout::make_masters() {
  if (!master_weights_.keep) return;
  for (Part& part : parts_) make_masters(part);
}

/// Makes the float32 values of parameters of half types.
void ShardLayout::make_masters(Part& part) {
  if (part.has_masters) return;
  const auto& buckets = part.flat->plan().buckets.buckets;
  // Arrays of parameters without a piece of this rank too, so that all ranks have the same arrays.
  for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    if (!c10::isReducedFloatingType(buckets[bucket].dtype)) continue;
    part.state->make(kMasterParameter, bucket);
  }
  for (const ShardPiece& piece : part.flat->pieces()) {
    if (!c10::isReducedFloatingType(buckets[piece.bucket].dtype)) continue;
    part.state->piece(kMasterParameter, piece).copy_(part.flat->tensor_of(piece));
  }
  part.has_masters = true;
}

void ShardLayout::make_shard_tensors() {
  for (Part& part : parts_) {
    if (!part.tensors) part.tensors = std::make_unique<ShardTensors>(*part.flat, *part.state);
  }
}

}  // namespace farandole
