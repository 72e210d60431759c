// SPDX-License-Identifier: Apache-2.0
// What a sharded optimizer is made of. Its steps: sharded_step.cpp; its state: sharded_state.cpp.
#include "farandole/optim/sharded_optimizer.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "farandole/error.h"
#include "optim/shards/check_master_weights.h"
#include "optim/shards/check_parameters.h"
#include "optim/shards/flat_parameters.h"
#include "optim/shards/joint_change.h"
#include "optim/shards/shard_tensors.h"
#include "optim/state/shard_state.h"
#include "optim/step/gradient_sources.h"
#include "optim/step/step_round.h"
#include "optim/step/update_pass.h"

namespace farandole {
namespace {

/// What travels as one over groups without shared memory.
constexpr int64_t kBucketBytes = int64_t{25} << 20;

}  // namespace

ShardedOptimizer::ShardedOptimizer(std::vector<ParameterGroup> groups,
                                   const farandole::Group& group, GradientMode mode,
                                   const MasterWeightOptions& master_weights, Partition partition)
    : mode_(mode),
      master_weights_(master_weights),
      partition_(partition),
      pass_(std::make_unique<UpdatePass>()),
      updates_(std::make_unique<std::vector<PieceUpdate>>()),
      changes_(std::make_unique<std::vector<GradientChange>>()) {
  check_master_weights(master_weights_);
  for (ParameterGroup& each : groups) add_parameters(std::move(each));
  if (parameters_.empty()) {
    throw InvalidArgument("a sharded optimizer got no parameters.", "there is nothing to step.",
                          "pass model.parameters(), and call it once: it may be a generator.");
  }
  find_replica();
  if (replica() != nullptr) replica()->await_parameters();  // of another
  choose_group(group);
  check_replica();
  check_same_parameters(/*with_values=*/false);
  plan_active();
  round_ = make_round(0);
  try {
    attach();
  } catch (...) {
    detach();
    throw;
  }
}

ShardedOptimizer::~ShardedOptimizer() { detach(); }

/// Takes the parameters of one more group.
void ShardedOptimizer::add_parameters(ParameterGroup group) {
  std::vector<Parameter> added;
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    const at::Tensor& tensor = group.parameters[i];
    check_parameter(tensor, group.names[i]);
    check_can_be_rounded(master_weights_, tensor.scalar_type(), group.names[i]);
    const auto is_same = [&](const Parameter& other) { return other.tensor.is_same(tensor); };
    if (std::any_of(parameters_.begin(), parameters_.end(), is_same) ||
        std::any_of(added.begin(), added.end(), is_same)) {
      throw InvalidArgument("parameter '" + group.names[i] + "' was passed twice.",
                            "it would be stepped twice.", "pass each parameter in one group.");
    }
    added.push_back({tensor, std::move(group.names[i]), groups_.size(), i});
  }
  std::vector<at::Tensor> tensors = tensors_;
  std::vector<std::string> names = names_;
  for (const Parameter& parameter : added) {
    tensors.push_back(parameter.tensor);
    names.push_back(parameter.name);
  }
  check_apart(tensors, names);
  std::vector<size_t> indices(added.size());
  std::iota(indices.begin(), indices.end(), parameters_.size());
  parameters_.reserve(parameters_.size() + added.size());
  groups_.push_back(std::move(indices));  // from here on nothing fails
  for (Parameter& parameter : added) parameters_.push_back(std::move(parameter));
  tensors_ = std::move(tensors);
  names_ = std::move(names);
}

void ShardedOptimizer::add_group(ParameterGroup group, const std::function<void()>& then) {
  wait();
  const size_t groups = groups_.size();
  const size_t parts = parts_.size();
  std::unique_ptr<StepRound> before;
  const auto add = [&] {
    const size_t first = parameters_.size();
    add_parameters(std::move(group));
    plan_added(first);
    before = std::exchange(round_, make_round(round_->step()));
    if (then) then();
  };
  change_together(*group_, "add_param_group()", add, [&] {
    if (before) round_ = std::move(before);
    drop_groups(groups, parts);
  });
}

/// Forgets those behind the first `groups` and `parts`. Parameters stay where they are.
void ShardedOptimizer::drop_groups(size_t groups, size_t parts) noexcept {
  while (groups_.size() > groups) {
    for (size_t i = 0; i < groups_.back().size(); ++i) {
      parameters_.pop_back();
      tensors_.pop_back();
      names_.pop_back();
    }
    groups_.pop_back();
  }
  while (parts_.size() > parts) parts_.pop_back();
  parts_shown_ = std::min(parts_shown_, parts);
}

/// Parameters from `first` on.
void ShardedOptimizer::plan_added(size_t first) {
  std::vector<size_t> active;
  for (size_t i = first; i < parameters_.size(); ++i) {
    if (parameters_[i].tensor.requires_grad()) active.push_back(i);
  }
  check_replica();
  check_same_parameters(/*with_values=*/false);
  are_values_known_ = false;
  if (scatter_ && !active.empty()) {
    throw NotSupported("a parameter group was added where gradients travel in buckets.",
                       "with gradients=\"shard\" over this group the buckets of backward are those "
                       "of the shards.",
                       "make the optimizer with all parameters.");
  }
  plan(active);
}

/// The DistributedDataParallel that has all parameters.
void ShardedOptimizer::find_replica() {
  replica_ = Replica::of(parameters_.front().tensor);
  for (const Parameter& parameter : parameters_) {
    if (Replica::of(parameter.tensor) != replica_) replica_.reset();
    if (!replica_) return;
  }
}

bool ShardedOptimizer::join_failed() const {
  return replica() != nullptr && replica()->join_failed();
}

void ShardedOptimizer::choose_group(const farandole::Group& group) {
  if (replica() != nullptr && (!group || group.get() == replica()->group().of_program().get())) {
    group_ = replica()->shared_group();
  } else if (!group && group_ && replica() == nullptr) {
    return;  // a rebuild for the same ranks
  } else {
    group_ = std::make_shared<ReplicaGroup>(group, "zero");
  }
}

/// kShard needs every gradient of one DistributedDataParallel.
void ShardedOptimizer::check_replica() const {
  if (mode_ == GradientMode::kFull) return;
  const char* fix =
      "pass the parameters of one DistributedDataParallel, all of them, and its "
      "process group or none; or use gradients=\"full\".";
  if (replica() == nullptr) {
    throw InvalidArgument(
        "gradients=\"shard\" got parameters that are not all of one DistributedDataParallel.",
        "it leaves the averaging of its gradients to the optimizer.", fix);
  }
  if (group_ != replica()->shared_group()) {
    throw InvalidArgument("gradients=\"shard\" got another group than the DistributedDataParallel.",
                          "gradients are averaged over the ranks that have computed them.", fix);
  }
  for (const auto& [name, tensor] : replica()->parameters()) {
    const auto is_same = [&, &wanted = tensor](const Parameter& parameter) {
      return parameter.tensor.is_same(wanted);
    };
    if (!tensor.requires_grad() || std::any_of(parameters_.begin(), parameters_.end(), is_same)) {
      continue;
    }
    throw InvalidArgument("gradients=\"shard\" did not get parameter '" + name + "'.",
                          "nobody would average its gradient.", fix);
  }
}

/// What ranks must have alike: of each parameter all but, unless asked for, its values.
uint64_t ShardedOptimizer::hash_of_parameters(bool with_values) const {
  uint64_t hash = parameters_.size();
  for (const Parameter& parameter : parameters_) {
    const at::Tensor& tensor = parameter.tensor;
    hash = hash * 31 + static_cast<uint64_t>(tensor.scalar_type());
    for (const int64_t size : tensor.sizes()) hash = hash * 31 + static_cast<uint64_t>(size);
    for (const int64_t stride : Buckets::strides_of_slot(tensor)) {
      hash = hash * 31 + static_cast<uint64_t>(stride);
    }
    hash = hash * 31 + parameter.group * 2 + (tensor.requires_grad() ? 1 : 0);
    if (with_values && tensor.is_cpu()) hash = hash * 31 + hash_of_values(tensor);
  }
  return hash;
}

void ShardedOptimizer::check_same_parameters(bool with_values) const {
  const std::vector<uint64_t> hashes = group_->all_gather(hash_of_parameters(with_values));
  for (size_t rank = 1; rank < hashes.size(); ++rank) {
    if (hashes[rank] != hashes[0]) throw_that_parameters_differ(static_cast<int>(rank), *group_);
  }
}

void ShardedOptimizer::plan_active() {
  std::vector<size_t> active;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].tensor.requires_grad()) active.push_back(i);
  }
  plan(active);
}

/// Makes these parameters, indices into parameters_, a part. Collective if there are any.
void ShardedOptimizer::plan(const std::vector<size_t>& indices) {
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
  const ShardPlan plan =
      make_shard_plan(planned, kBucketBytes, group_->world_size(), {partition_, loads()});
  Part part;
  part.parameters = indices;
  part.flat = std::make_unique<FlatParameters>(tensors, names, plan, *group_);
  part.state = std::make_unique<ShardState>(plan, rank());
  parts_.reserve(parts_.size() + 1);
  for (size_t i = 0; i < indices.size(); ++i) {
    parameters_[indices[i]].part = parts_.size();
    parameters_[indices[i]].index_in_part = i;
  }
  parts_.push_back(std::move(part));
}

/// Elements that each rank owns so far.
std::vector<int64_t> ShardedOptimizer::loads() const {
  std::vector<int64_t> loads(static_cast<size_t>(world_size()), 0);
  for (const Part& part : parts_) {
    for (int rank = 0; rank < world_size(); ++rank) {
      for (const ShardPiece& piece : part.flat->plan().pieces_of(rank)) {
        loads[static_cast<size_t>(rank)] += piece.elements;
      }
    }
  }
  return loads;
}

Replica* ShardedOptimizer::replica() const { return replica_ ? replica_->replica : nullptr; }

bool ShardedOptimizer::averages_in_step() const {
  return mode_ == GradientMode::kShard && !scatter_;
}

/// Tells the DistributedDataParallel what to do with gradients, and before a forward.
void ShardedOptimizer::attach() {
  gradients_ = std::make_unique<AveragedGradients>();
  Replica* const replica = this->replica();
  if (replica == nullptr) return;
  const bool is_shared =
      group_->communicator() != nullptr &&
      std::all_of(tensors_.begin(), tensors_.end(), [](const auto& each) { return each.is_cpu(); });
  if (!is_shared && group_ == replica->shared_group()) {
    replica->set_before_forward(this, [this] { wait(); });
  }
  if (mode_ == GradientMode::kFull) {
    if (replica->is_sharded()) replica->set_sharded(std::nullopt);  // this optimizer takes over
    return;
  }
  ShardedGradients sharded;
  sharded.owner = this;
  sharded.before_backward = [this] { before_backward(); };
  if (is_shared) {
    gradients_ = std::make_unique<PeerGradients>(replica_, this);
  } else {
    const ShardPlan plan = parts_.empty() ? ShardPlan{{}, {}, group_->world_size(), partition_}
                                          : parts_.front().flat->plan();
    scatter_ =
        std::make_shared<GradientScatter>(group_->group(), plan, replica->options().wire_dtype);
    gradients_ = std::make_unique<ScatteredGradients>(replica_, this, scatter_);
    sharded.scatter = scatter_;
    sharded.plan = plan_for_reducer(plan.buckets);
  }
  replica->set_sharded(std::move(sharded));
}

/// The same buckets, of parameters as the DistributedDataParallel counts them.
BucketPlan ShardedOptimizer::plan_for_reducer(BucketPlan plan) const {
  const NamedTensors& replicated = replica()->parameters();
  for (auto& bucket : plan.buckets) {
    for (auto& slot : bucket.slots) {
      const at::Tensor& tensor = parameters_[parts_.front().parameters[slot.parameter]].tensor;
      const auto found = std::find_if(replicated.begin(), replicated.end(), [&](const auto& named) {
        return named.second.is_same(tensor);
      });
      slot.parameter = static_cast<size_t>(found - replicated.begin());
    }
  }
  return plan;
}

/// First makes sure that nobody calls this object any more.
void ShardedOptimizer::detach() noexcept {
  if (Replica* const replica = this->replica()) {
    replica->set_before_forward(this, {});
    try {
      if (replica->is_sharded_by(this)) replica->set_sharded(std::nullopt);
    } catch (const std::exception&) {  // an abandoned backward of a group that is over
    }
  }
  for (const auto& work : std::exchange(works_, {})) {
    try {
      work->wait();
    } catch (const std::exception&) {  // the group is over
    }
  }
}

std::unique_ptr<StepRound> ShardedOptimizer::make_round(uint64_t step) const {
  return std::make_unique<StepRound>(group_, names_, step);
}

void ShardedOptimizer::check_group_index(size_t group) const {
  if (group < groups_.size()) return;
  throw InvalidArgument("there is no parameter group " + std::to_string(group) + ".",
                        "the optimizer has " + std::to_string(groups_.size()) + ", from 0.",
                        "pass one of those.");
}

std::vector<ShardedOptimizer::Piece> ShardedOptimizer::pieces(size_t group) const {
  std::vector<Piece> pieces;
  for_each_piece(group, [&](const Part& part, size_t, const ShardPiece& piece) {
    pieces.push_back({parameters_[part.parameters[piece.parameter]].index, piece.parameter_offset,
                      piece.elements});
  });
  return pieces;
}

void ShardedOptimizer::for_each_piece(
    size_t group, const std::function<void(const Part&, size_t, const ShardPiece&)>& call) const {
  check_group_index(group);
  for (const Part& part : parts_) {
    const auto& pieces = part.flat->pieces();
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (part.flat->plan().groups[pieces[i].bucket] == group) call(part, i, pieces[i]);
    }
  }
}

int64_t ShardedOptimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts_) bytes += part.state->bytes();
  return bytes;
}

int64_t ShardedOptimizer::bytes_moved() const {
  int64_t bytes = 0;
  for (const Part& part : parts_) {
    const ShardPlan& plan = part.flat->plan();
    for (size_t i = 0; i < plan.groups.size(); ++i) {
      const auto& bucket = plan.buckets.buckets[i];
      const auto wire = scatter_ ? scatter_->wire_of(bucket.dtype) : std::nullopt;
      const int64_t own = plan.shard_elements(i, rank());
      const auto gradient = static_cast<int64_t>(c10::elementSize(wire.value_or(bucket.dtype)));
      const auto parameter = static_cast<int64_t>(c10::elementSize(bucket.dtype));
      bytes += (bucket.padded_elements - own) * gradient + own * (world_size() - 1) * parameter;
    }
  }
  return bytes;
}

}  // namespace farandole
