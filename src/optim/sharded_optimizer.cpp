// SPDX-License-Identifier: Apache-2.0
// The parts of a sharded optimizer: which rank owns what (shards), the state (state), the step.
#include "farandole/optim/sharded_optimizer.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "farandole/error.h"
#include "optim/shards/check_master_weights.h"
#include "optim/shards/joint_change.h"
#include "optim/shards/shard_layout.h"
#include "optim/shards/shard_ranks.h"
#include "optim/state/gather_shards.h"
#include "optim/state/move_state.h"
#include "optim/step/gradient_clipping.h"
#include "optim/step/gradient_sources.h"
#include "optim/step/sharded_step.h"

namespace farandole {
namespace {

/// The group of a host's ranks has communicators of the CPU alone.
void check_shard_over(ShardOver shard_over, const ShardLayout& layout) {
  if (shard_over == ShardOver::kWorld || !layout.is_on_accelerator()) return;
  throw NotSupported(
      "shard-over-host-device",
      "shard_over=\"host\" got parameters on " + layout.tensors().front().device().str() + ".",
      "the ranks of a host share parameters through memory of the CPU.",
      "leave shard_over out, or pass as process_group a group of each host's ranks.");
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(std::vector<ParameterGroup> groups,
                                   const farandole::Group& group, GradientMode mode,
                                   const MasterWeightOptions& master_weights, Partition partition,
                                   ShardOver shard_over)
    : layout_(std::make_unique<ShardLayout>(master_weights, partition)),
      ranks_(std::make_unique<ShardRanks>(mode, shard_over)),
      step_(std::make_unique<ShardedStep>(*layout_, *ranks_)) {
  check_master_weights(master_weights);
  for (ParameterGroup& each : groups) layout_->add_group(std::move(each));
  if (layout_->parameters().empty()) {
    throw InvalidArgument(
        "no-parameters", "a sharded optimizer got no parameters.", "there is nothing to step.",
        "pass model.parameters(), and do not pass a generator that was already consumed.");
  }
  check_shard_over(shard_over, *layout_);
  ranks_->find_replica(layout_->tensors());
  if (ranks_->replica() != nullptr) ranks_->replica()->await_parameters();  // of another optimizer
  ranks_->choose_group(group);
  ranks_->check_replica(*layout_);
  ranks_->check_same_parameters(*layout_, /*with_values=*/false);
  layout_->plan(layout_->active(), *ranks_->group());
  step_->set_round(step_->make_round());
  try {
    attach();
  } catch (...) {
    detach();
    throw;
  }
}

ShardedOptimizer::~ShardedOptimizer() { detach(); }

void ShardedOptimizer::add_group(ParameterGroup group, const std::function<void()>& then) {
  wait();
  const size_t groups = layout_->group_count();
  const size_t parts = layout_->parts().size();
  std::unique_ptr<StepRound> before;
  const auto add = [&] {
    const size_t first = layout_->parameters().size();
    layout_->add_group(std::move(group));
    plan_added(first);
    before = step_->set_round(step_->make_round());
    if (then) then();
  };
  change_together(*ranks_->everyone(), "add_param_group()", add, [&] {
    if (before) step_->set_round(std::move(before));
    layout_->drop(groups, parts);
    parts_shown_ = std::min(parts_shown_, parts);
  });
}

/// Parameters from `first` on.
void ShardedOptimizer::plan_added(size_t first) {
  const std::vector<size_t> active = layout_->active(first);
  ranks_->check_replica(*layout_);
  ranks_->check_same_parameters(*layout_, /*with_values=*/false);
  step_->set_values_known(false);
  if (scatter_ && !active.empty()) {
    throw NotSupported(
        "group-added",
        "a parameter group was added to an optimizer whose gradients are sent in buckets.",
        "with gradients=\"shard\" over this group, the shards are those of the buckets of "
        "backward.",
        "make the optimizer with all parameters.");
  }
  layout_->plan(active, *ranks_->group());
}

/// Tells the DistributedDataParallel what to do with gradients, and before a forward.
void ShardedOptimizer::attach() {
  scatter_.reset();
  step_->set_sources(std::make_unique<AveragedGradients>(), /*are_scattered=*/false);
  Replica* const replica = ranks_->replica();
  if (replica == nullptr) return;
  const bool is_shared =
      ranks_->group()->shared_memory() != nullptr && !layout_->is_on_accelerator();
  if (!is_shared && ranks_->are_of_replica()) {
    replica->set_before_forward(this, [this] {
      if (arrival_ != ParameterArrival::kCaller) wait();
    });
  }
  if (mode() == GradientMode::kFull) {
    if (replica->is_sharded()) replica->set_sharded(std::nullopt);  // this optimizer takes over
    return;
  }
  ShardedGradients sharded;
  sharded.owner = this;
  sharded.before_backward = [this] { step_->before_backward(); };
  const auto& link = ranks_->replica_link();
  if (is_shared) {
    step_->set_sources(std::make_unique<PeerGradients>(link, this), /*are_scattered=*/false);
  } else {
    const auto& parts = layout_->parts();
    const ShardPlan plan = parts.empty() ? ShardPlan{{}, {}, ranks_->world_size(), partition()}
                                         : parts.front().flat->plan();
    scatter_ = std::make_shared<GradientScatter>(ranks_->group()->group(), plan,
                                                 replica->options().wire_dtype);
    step_->set_sources(std::make_unique<ScatteredGradients>(link, this, scatter_),
                       /*are_scattered=*/true);
    sharded.scatter = scatter_;
    sharded.plan = plan_for_reducer(plan.buckets);
  }
  replica->set_sharded(std::move(sharded));
}

/// The same buckets, of parameters as the DistributedDataParallel counts them.
BucketPlan ShardedOptimizer::plan_for_reducer(BucketPlan plan) const {
  const NamedTensors& replicated = ranks_->replica()->parameters();
  for (auto& bucket : plan.buckets) {
    for (auto& slot : bucket.slots) {
      const size_t index = layout_->parts().front().parameters[slot.parameter];
      const at::Tensor& tensor = layout_->tensors()[index];
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
  if (Replica* const replica = ranks_->replica()) {
    replica->set_before_forward(this, {});
    try {
      if (replica->is_sharded_by(this)) replica->set_sharded(std::nullopt);
    } catch (const std::exception&) {  // an abandoned backward of a group that is over
    }
  }
  step_->finish_transfers();
}

void ShardedOptimizer::step(const UpdateRules& rules) { step_->step(rules); }

bool ShardedOptimizer::begin_step(const std::string& description) {
  return step_->begin(description) && layout_->parts().size() != parts_shown_;
}

void ShardedOptimizer::end_step() { step_->end(); }

void ShardedOptimizer::fail_step(const std::string& error) noexcept { step_->fail(error); }

void ShardedOptimizer::expect_scaled(const ScaledStep& scaled) { step_->expect_scaled(scaled); }

void ShardedOptimizer::expect_plain() { step_->expect_plain(); }

bool ShardedOptimizer::was_left_out() const { return step_->was_left_out(); }

bool ShardedOptimizer::join_failed() const {
  return ranks_->replica() != nullptr && ranks_->replica()->join_failed();
}

bool ShardedOptimizer::unscale(double factor) { return step_->unscale(factor); }

bool ShardedOptimizer::all_agree(bool yes) const {
  const std::vector<double> all = ranks_->all_gather({yes ? 1.0 : 0.0});
  return std::count(all.begin(), all.end(), 1) == world_size();
}

bool ShardedOptimizer::sends_parameters() const {
  const auto& parts = layout_->parts();
  return ranks_->world_size() > 1 &&
         std::any_of(parts.begin(), parts.end(),
                     [](const ShardLayout::Part& part) { return !part.flat->is_shared(); });
}

void ShardedOptimizer::set_arrival(ParameterArrival arrival) {
  arrival_ = arrival;
  step_->set_arrival(arrival);
}

void ShardedOptimizer::wait() { step_->wait(); }

void ShardedOptimizer::wait_for(const std::vector<at::Tensor>& parameters) {
  step_->wait_for(parameters);
}

bool ShardedOptimizer::is_sending() const { return step_->is_sending(); }

double ShardedOptimizer::clip_grad_norm(double max_norm, double norm_type,
                                        bool error_if_nonfinite) {
  return clip_grad_norm_tensor(max_norm, norm_type, error_if_nonfinite).item<double>();
}

at::Tensor ShardedOptimizer::clip_grad_norm_tensor(double max_norm, double norm_type,
                                                   bool error_if_nonfinite) {
  return clip_gradient_norm(*step_, *layout_, mode(), max_norm, norm_type, error_if_nonfinite);
}

void ShardedOptimizer::clip_grad_value(double clip_value) {
  clip_gradient_values(*step_, *layout_, mode(), clip_value);
}

std::vector<ShardedOptimizer::Piece> ShardedOptimizer::pieces(size_t group) const {
  std::vector<Piece> pieces;
  layout_->for_each_piece(
      group, [&](const ShardLayout::Part& part, size_t, const ShardPiece& piece) {
        pieces.push_back({layout_->parameters()[part.parameters[piece.parameter]].index,
                          piece.parameter_offset, piece.elements});
      });
  return pieces;
}

std::vector<at::Tensor> ShardedOptimizer::shards(size_t group) {
  check_keeps_masters(master_weights());
  layout_->make_masters();
  layout_->make_shard_tensors();
  parts_shown_ = layout_->parts().size();
  std::vector<at::Tensor> shards;
  layout_->for_each_piece(group,
                          [&](const ShardLayout::Part& part, size_t index, const ShardPiece&) {
                            shards.push_back(part.tensors->tensor(index));
                          });
  return shards;
}

void ShardedOptimizer::make_state(const UpdateRules& rules) { layout_->make_state(rules); }

std::vector<at::Tensor> ShardedOptimizer::state(size_t group, const std::string& name) const {
  std::vector<at::Tensor> pieces;
  layout_->for_each_piece(group,
                          [&](const ShardLayout::Part& part, size_t, const ShardPiece& piece) {
                            const at::Tensor tensor = part.state->piece(name, piece);
                            if (tensor.defined()) pieces.push_back(tensor);
                          });
  return pieces;
}

std::vector<int64_t> ShardedOptimizer::steps(size_t group) const {
  std::vector<int64_t> steps;
  for (const size_t index : layout_->group(group))
    steps.push_back(layout_->parameters()[index].steps);
  return steps;
}

std::vector<bool> ShardedOptimizer::are_planned(size_t group) const {
  std::vector<bool> planned;
  for (const size_t index : layout_->group(group))
    planned.push_back(layout_->parameters()[index].part != ShardLayout::kNone);
  return planned;
}

void ShardedOptimizer::set_steps(size_t group, const std::vector<int64_t>& steps,
                                 const std::vector<bool>& has_state) {
  if (steps.size() != layout_->group(group).size()) {
    throw InvalidArgument(
        "set-steps", "set_steps() got " + std::to_string(steps.size()) + " numbers.",
        "the group has " + std::to_string(layout_->group(group).size()) + " parameters.",
        "pass one number for each parameter.");
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    layout_->parameters()[layout_->group(group)[i]].steps = steps[i];
    layout_->parameters()[layout_->group(group)[i]].has_state =
        has_state.empty() ? steps[i] > 0 : has_state[i];
  }
}

int64_t ShardedOptimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const ShardLayout::Part& part : layout_->parts()) bytes += part.state->bytes();
  return bytes;
}

int64_t ShardedOptimizer::bytes_moved() const {
  int64_t bytes = 0;
  for (const ShardLayout::Part& part : layout_->parts()) {
    const ShardPlan& plan = part.flat->plan();
    for (size_t i = 0; i < plan.groups.size(); ++i) {
      const auto& bucket = plan.buckets.buckets[i];
      const auto wire = scatter_ ? scatter_->wire_of(bucket.dtype) : std::nullopt;
      const int64_t own = plan.shard_elements(i, shard_rank());
      const auto gradient = static_cast<int64_t>(c10::elementSize(wire.value_or(bucket.dtype)));
      const auto parameter = static_cast<int64_t>(c10::elementSize(bucket.dtype));
      bytes +=
          (bucket.padded_elements - own) * gradient + own * (ranks_->world_size() - 1) * parameter;
    }
  }
  return bytes;
}

std::vector<at::Tensor> ShardedOptimizer::gather(size_t group,
                                                 const std::vector<at::Tensor>& pieces,
                                                 int to) const {
  return gather_group(*ranks_, *layout_, group, pieces, to);
}

void ShardedOptimizer::broadcast(const at::Tensor& tensor, int root) const {
  ranks_->group()->broadcast({tensor}, root);
}

std::vector<std::string> ShardedOptimizer::all_gather(const std::string& text) const {
  return ranks_->group()->all_gather(text);
}

void ShardedOptimizer::begin_rebuild(const farandole::Group& group) {
  try {
    wait();
  } catch (const std::exception&) {  // ranks that are gone
  }
  ranks_->begin_change(group, *layout_);
}

void ShardedOptimizer::finish_rebuild(const std::function<void()>& then) {
  const c10::NoGradGuard no_grad;
  try {
    if (ranks_->replica() != nullptr) ranks_->replica()->await_parameters();
    ranks_->check_replica(*layout_);
    ranks_->check_same_parameters(*layout_, /*with_values=*/true);
    check_shard_over(ranks_->shard_over(), *layout_);
    step_->set_values_known(true);
  } catch (const std::exception&) {
    ranks_->undo_change();
    throw;
  }
  ShardLayout::Plan before = layout_->take_plan();
  const auto undo = [&, shown = parts_shown_] {
    layout_->put_back(std::move(before));
    parts_shown_ = shown;
    ranks_->undo_change();
  };
  // First all the memory that is needed, while nobody waits for elements of this rank.
  const std::shared_ptr<ReplicaGroup> group = ranks_->group();
  const std::shared_ptr<ReplicaGroup> everyone = ranks_->everyone();
  const auto make_arrays = [&] {
    const std::vector<size_t> frozen = layout_->frozen_with_state();
    layout_->plan(layout_->active(), *group);
    layout_->plan(frozen, *group);
    for (const ShardLayout::Part& part : before.parts) make_arrays_of(part, *layout_);
  };
  change_together(*everyone, "rebuild()", make_arrays, undo);
  std::unique_ptr<StepRound> round;
  const auto move_states = [&] {
    for (const ShardLayout::Part& part : before.parts) move_state(part, *ranks_, *layout_);
    round = step_->make_round();
    if (then) then();
  };
  change_together(*everyone, "rebuild()", move_states, undo);
  ranks_->finish_change();
  step_->set_round(std::move(round));
  attach();
}

int ShardedOptimizer::rank() const { return ranks_->everyone()->rank(); }

int ShardedOptimizer::world_size() const { return ranks_->everyone()->world_size(); }

int ShardedOptimizer::shard_rank() const { return ranks_->rank(); }

std::optional<int> ShardedOptimizer::shard_rank_of(int rank) const {
  const std::vector<int>& sharers = ranks_->sharers();
  const auto found = std::find(sharers.begin(), sharers.end(), rank);
  if (found == sharers.end()) return std::nullopt;
  return static_cast<int>(found - sharers.begin());
}

const farandole::Group& ShardedOptimizer::group() const { return ranks_->everyone()->of_program(); }

GradientMode ShardedOptimizer::mode() const { return ranks_->mode(); }

const MasterWeightOptions& ShardedOptimizer::master_weights() const {
  return layout_->master_weights();
}

Partition ShardedOptimizer::partition() const { return layout_->partition(); }

}  // namespace farandole
