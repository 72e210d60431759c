// SPDX-License-Identifier: Apache-2.0
// The state of a sharded optimizer: made, gathered for checkpoints, and moved to other ranks.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "farandole/error.h"
#include "farandole/optim/sharded_optimizer.h"
#include "optim/shards/check_master_weights.h"
#include "optim/shards/flat_parameters.h"
#include "optim/shards/joint_change.h"
#include "optim/shards/shard_tensors.h"
#include "optim/state/shard_state.h"
#include "optim/step/step_round.h"
#include "process_group/torch_compat.h"

namespace farandole {
namespace {

/// A tensor like `parameter`, with `elements` in the order of its memory.
at::Tensor in_shape_of(const at::Tensor& parameter, const at::Tensor& elements) {
  return elements.contiguous().as_strided(parameter.sizes(), Buckets::strides_of_slot(parameter));
}

}  // namespace

void ShardedOptimizer::make_state(const UpdateRules& rules) {
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

void ShardedOptimizer::make_masters() {
  if (!master_weights_.keep) return;
  for (Part& part : parts_) make_masters(part);
}

/// float32 values of parameters of half types.
void ShardedOptimizer::make_masters(Part& part) {
  if (part.has_masters) return;
  const auto& buckets = part.flat->plan().buckets.buckets;
  // Also those of which this rank has no piece: all ranks have the same arrays.
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

std::vector<at::Tensor> ShardedOptimizer::shards(size_t group) {
  check_keeps_masters(master_weights_);
  make_masters();
  make_shard_tensors();
  parts_shown_ = parts_.size();
  std::vector<at::Tensor> shards;
  for_each_piece(group, [&](const Part& part, size_t index, const ShardPiece&) {
    shards.push_back(part.tensors->tensor(index));
  });
  return shards;
}

void ShardedOptimizer::make_shard_tensors() {
  for (Part& part : parts_) {
    if (!part.tensors) part.tensors = std::make_unique<ShardTensors>(*part.flat, *part.state);
  }
}

std::vector<at::Tensor> ShardedOptimizer::state(size_t group, const std::string& name) const {
  std::vector<at::Tensor> pieces;
  for_each_piece(group, [&](const Part& part, size_t, const ShardPiece& piece) {
    const at::Tensor tensor = part.state->piece(name, piece);
    if (tensor.defined()) pieces.push_back(tensor);
  });
  return pieces;
}

std::vector<int64_t> ShardedOptimizer::steps(size_t group) const {
  check_group_index(group);
  std::vector<int64_t> steps;
  for (const size_t index : groups_[group]) steps.push_back(parameters_[index].steps);
  return steps;
}

std::vector<bool> ShardedOptimizer::are_planned(size_t group) const {
  check_group_index(group);
  std::vector<bool> planned;
  for (const size_t index : groups_[group]) planned.push_back(parameters_[index].part != kNone);
  return planned;
}

void ShardedOptimizer::set_steps(size_t group, const std::vector<int64_t>& steps,
                                 const std::vector<bool>& has_state) {
  check_group_index(group);
  if (steps.size() != groups_[group].size()) {
    throw InvalidArgument("set_steps() got " + std::to_string(steps.size()) + " numbers.",
                          "the group has " + std::to_string(groups_[group].size()) + " parameters.",
                          "pass one for each.");
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    parameters_[groups_[group][i]].steps = steps[i];
    parameters_[groups_[group][i]].has_state = has_state.empty() ? steps[i] > 0 : has_state[i];
  }
}

std::vector<std::string> ShardedOptimizer::all_gather(const std::string& text) const {
  return group_->all_gather(text);
}

/// What the pieces of all ranks are of; ranks may have none.
at::ScalarType ShardedOptimizer::common_dtype(const std::vector<at::Tensor>& pieces) const {
  const uint64_t own = pieces.empty() ? 0 : 1 + static_cast<uint64_t>(pieces[0].scalar_type());
  for (const uint64_t dtype : group_->all_gather(own)) {
    if (dtype != 0) return static_cast<at::ScalarType>(dtype - 1);
  }
  return at::kFloat;
}

std::vector<at::Tensor> ShardedOptimizer::gather(size_t group,
                                                 const std::vector<at::Tensor>& pieces,
                                                 int to) const {
  const c10::NoGradGuard no_grad;
  check_group_index(group);
  if (to < -1 || to >= world_size()) {
    throw InvalidArgument("gather() got rank " + std::to_string(to) + ".",
                          "there are ranks 0 to " + std::to_string(world_size() - 1) + ".",
                          "pass one of those, or -1 for all.");
  }
  const at::ScalarType dtype = common_dtype(pieces);
  std::vector<at::Tensor> whole(groups_[group].size());
  size_t next = 0;
  for (const Part& part : parts_) {
    const ShardPlan& plan = part.flat->plan();
    for (size_t bucket = 0; bucket < plan.groups.size(); ++bucket) {
      if (plan.groups[bucket] != group) continue;
      const at::Device device = plan.buckets.buckets[bucket].device;
      const at::Tensor shard = at::zeros({plan.shard_elements(bucket, part.flat->rank())},
                                         at::TensorOptions(device).dtype(dtype));
      for (const ShardPiece& piece : part.flat->pieces()) {
        if (piece.bucket != bucket) continue;
        shard.narrow(0, piece.shard_offset, piece.elements).copy_(pieces[next++]);
      }
      const at::Tensor all = gather_bucket(plan, bucket, shard, to);
      if (!all.defined()) continue;
      for (const auto& slot : plan.buckets.buckets[bucket].slots) {
        const Parameter& parameter = parameters_[part.parameters[slot.parameter]];
        whole[parameter.index] =
            in_shape_of(parameter.tensor, all.narrow(0, slot.offset, slot.elements).clone());
      }
    }
  }
  if (to >= 0 && to != rank()) return {};
  for (size_t i = 0; i < whole.size(); ++i) {  // those that are not planned
    const at::Tensor& tensor = parameters_[groups_[group][i]].tensor;
    if (!whole[i].defined()) whole[i] = at::zeros(tensor.sizes(), tensor.options().dtype(dtype));
  }
  return whole;
}

/// The shards of all ranks one after the other, on rank `to` or on all.
at::Tensor ShardedOptimizer::gather_bucket(const ShardPlan& plan, size_t bucket,
                                           const at::Tensor& shard, int to) const {
  if (!owners_.empty() || plan.partition == Partition::kParameters) {
    return broadcast_shards(plan, bucket, shard, to);
  }
  if (world_size() == 1) return shard;
  at::Tensor all;
  const bool is_receiver = to < 0 || to == rank();
  if (is_receiver) all = at::empty({world_size() * shard.numel()}, shard.options());
  if (to < 0) {
    c10d::AllgatherOptions options;
    options.asyncOp = false;
    at::Tensor input = shard;
    const auto work = all_gather_single(*group_->group(), all, input, options);
    if (work) work->wait();
    return all;
  }
  c10d::GatherOptions options;
  options.rootRank = to;
  options.asyncOp = false;
  std::vector<at::Tensor> inputs{shard};
  std::vector<std::vector<at::Tensor>> outputs;
  if (is_receiver) outputs.push_back(all.chunk(world_size()));
  const auto work = group_->group()->gather(outputs, inputs, options);
  if (work) work->wait();
  return all;
}

/// The same for shards of several lengths, and in a rebuild for those of the ranks of before: zeros
/// for one that is gone.
at::Tensor ShardedOptimizer::broadcast_shards(const ShardPlan& plan, size_t bucket,
                                              const at::Tensor& shard, int to) const {
  at::Tensor all;
  const bool is_receiver = to < 0 || to == rank();
  if (is_receiver) all = at::empty({plan.buckets.buckets[bucket].padded_elements}, shard.options());
  for (int old_rank = 0; old_rank < plan.world_size; ++old_rank) {
    const int64_t elements = plan.shard_elements(bucket, old_rank);
    if (elements == 0) continue;
    const int owner = owners_.empty() ? old_rank : owners_[static_cast<size_t>(old_rank)];
    at::Tensor piece = owner == rank() ? shard : at::zeros({elements}, shard.options());
    if (owner >= 0) group_->broadcast({piece}, owner);
    if (is_receiver) all.narrow(0, plan.shard_begin(bucket, old_rank), elements).copy_(piece);
  }
  return all;
}

void ShardedOptimizer::broadcast(const at::Tensor& tensor, int root) const {
  group_->broadcast({tensor}, root);
}

void ShardedOptimizer::begin_rebuild(const farandole::Group& group) {
  try {
    wait();
  } catch (const std::exception&) {  // ranks that are gone
  }
  if (!previous_group_) previous_group_ = group_;  // else of a rebuild that was not finished
  const int old_world = parts_.empty() ? world_size() : parts_.front().flat->plan().world_size;
  const int old_rank = parts_.empty() ? rank() : parts_.front().flat->rank();
  if (!replica_ || replica_->replica == nullptr) find_replica();
  choose_group(group);
  const std::vector<uint64_t> old_ranks = group_->all_gather(static_cast<uint64_t>(old_rank));
  owners_.assign(static_cast<size_t>(old_world), -1);
  for (size_t owner = old_ranks.size(); owner-- > 0;) {
    if (old_ranks[owner] < owners_.size()) owners_[old_ranks[owner]] = static_cast<int>(owner);
  }
  const auto lost = std::find(owners_.begin(), owners_.end(), -1);
  const bool has_state =
      std::any_of(parameters_.begin(), parameters_.end(),
                  [](const Parameter& parameter) { return parameter.steps > 0; });
  if (lost == owners_.end() || !has_state) return;
  const auto lost_rank = std::to_string(lost - owners_.begin());
  forget_rebuild();
  throw InvalidArgument("rebuild() cannot find the optimizer state of rank " + lost_rank + " of " +
                            std::to_string(old_world) + ".",
                        "each rank has the state of its own shards alone, and that rank is not "
                        "among the present ones.",
                        "make a new optimizer and load a checkpoint into it, on all ranks; "
                        "parameters are whole on every rank.");
}

/// The ranks are those of before.
void ShardedOptimizer::forget_rebuild() {
  owners_.clear();
  group_ = std::move(previous_group_);
}

/// What plan() makes.
struct ShardedOptimizer::Plan {
  struct Place {
    size_t part;
    size_t index_in_part;
  };
  std::vector<Part> parts;
  std::vector<Place> places;  ///< by parameter
  std::shared_ptr<GradientScatter> scatter;
  size_t parts_shown;
};

/// Afterwards nothing is planned.
ShardedOptimizer::Plan ShardedOptimizer::take_plan() {
  Plan plan;
  plan.places.reserve(parameters_.size());
  for (const Parameter& parameter : parameters_) {
    plan.places.push_back({parameter.part, parameter.index_in_part});
  }
  for (Parameter& parameter : parameters_) parameter.part = kNone;
  plan.parts = std::exchange(parts_, {});
  plan.scatter = std::exchange(scatter_, nullptr);
  plan.parts_shown = parts_shown_;
  return plan;
}

void ShardedOptimizer::put_back(Plan before) noexcept {
  parts_ = std::move(before.parts);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].part = before.places[i].part;
    parameters_[i].index_in_part = before.places[i].index_in_part;
  }
  scatter_ = std::move(before.scatter);
  parts_shown_ = before.parts_shown;
  for (Part& part : parts_) {
    try {
      part.flat->bring_home();
    } catch (const std::exception&) {  // a step will tell, if rebuild() is not called again
    }
  }
}

/// Of all parameters that get gradients, and of frozen ones that have state; those apart, since no
/// gradient of them travels.
void ShardedOptimizer::plan_anew() {
  std::vector<size_t> frozen;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    if (!parameter.tensor.requires_grad() && parameter.steps > 0) frozen.push_back(i);
  }
  plan_active();
  plan(frozen);
}

void ShardedOptimizer::finish_rebuild(const std::function<void()>& then) {
  const c10::NoGradGuard no_grad;
  try {
    if (replica_ && replica_->replica != nullptr) replica_->replica->await_parameters();
    check_replica();
    check_same_parameters(/*with_values=*/true);
    are_values_known_ = true;
  } catch (const std::exception&) {
    forget_rebuild();
    throw;
  }
  Plan before = take_plan();
  const auto undo = [&] {
    put_back(std::move(before));
    forget_rebuild();
  };
  // First all the memory that is needed, while nobody waits for elements of this rank.
  const std::shared_ptr<ReplicaGroup> group = group_;
  const auto make_arrays = [&] {
    plan_anew();
    for (const Part& part : before.parts) make_arrays_of(part);
  };
  change_together(*group, "rebuild()", make_arrays, undo);
  std::unique_ptr<StepRound> round;
  const auto move_states = [&] {
    for (const Part& part : before.parts) move_state(part);
    round = make_round(round_->step());
    if (then) then();
  };
  change_together(*group, "rebuild()", move_states, undo);
  owners_.clear();
  previous_group_.reset();
  round_ = std::move(round);
  attach();
}

/// Zeros for what a former part has, where its elements belong now.
void ShardedOptimizer::make_arrays_of(const Part& old) {
  const ShardPlan& plan = old.flat->plan();
  for (size_t bucket = 0; bucket < plan.groups.size(); ++bucket) {
    for (const std::string& name : old.state->names(bucket)) {
      for (const auto& slot : plan.buckets.buckets[bucket].slots) {
        make_array(old.parameters[slot.parameter], name);
      }
    }
  }
}

void ShardedOptimizer::make_array(size_t index, const std::string& name) {
  const Parameter& parameter = parameters_[index];
  if (parameter.part == kNone) return;
  Part& part = parts_[parameter.part];
  if (name == kMasterParameter) return make_masters(part);
  for (size_t bucket = 0; bucket < part.flat->plan().groups.size(); ++bucket) {
    for (const auto& slot : part.flat->plan().buckets.buckets[bucket].slots) {
      if (slot.parameter == parameter.index_in_part) part.state->make(name, bucket);
    }
  }
}

/// Brings the arrays of a former part to those who own their elements now, one array at a time.
void ShardedOptimizer::move_state(const Part& old) {
  const ShardPlan& plan = old.flat->plan();
  for (size_t bucket = 0; bucket < plan.groups.size(); ++bucket) {
    for (const std::string& name : old.state->names(bucket)) {
      const at::Tensor all = gather_bucket(plan, bucket, old.state->array(name, bucket), /*to=*/-1);
      for (const auto& slot : plan.buckets.buckets[bucket].slots) {
        take_state(old.parameters[slot.parameter], name, all.narrow(0, slot.offset, slot.elements));
      }
    }
  }
}

/// Keeps what this rank owns of the state of a parameter. Of one that is of a half type no more
/// there are no masters: the program has rounded it.
void ShardedOptimizer::take_state(size_t index, const std::string& name, const at::Tensor& state) {
  const Parameter& parameter = parameters_[index];
  if (parameter.part == kNone) return;
  const bool is_half = c10::isReducedFloatingType(parameter.tensor.scalar_type());
  if (name == kMasterParameter && !is_half) return;
  Part& part = parts_[parameter.part];
  for (const ShardPiece& piece : part.flat->pieces()) {
    if (piece.parameter != parameter.index_in_part) continue;
    part.state->piece(name, piece).copy_(state.narrow(0, piece.parameter_offset, piece.elements));
  }
}

}  // namespace farandole
