// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/zero_redundancy_optimizer.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include "farandole/error.h"
#include "optim/state/full_state.h"
#include "optim/state/shard_state.h"
#include "optim/state/state_format.h"
#include "optim/step/fused_stepper.h"
#include "optim/step/inner_stepper.h"

namespace farandole {
namespace {

using Groups = ZeroRedundancyOptimizer::Groups;
using Factory = ZeroRedundancyOptimizer::Factory;
using Options = ZeroRedundancyOptimizer::Options;

// In an archive.
constexpr char kMasterParameters[] = "master_parameters";
constexpr char kParameterSteps[] = "parameter_steps";

/// The groups of a temporary optimizer into which an archive is read first.
class Draft final : public torch::optim::Optimizer {
 public:
  using Optimizer::Optimizer;
  at::Tensor step(LossClosure) override { return {}; }
};

Groups one_group(std::vector<at::Tensor> parameters) {
  Groups groups;
  groups.emplace_back(std::move(parameters));
  return groups;
}

void check_can_be_divided(const Options& options) {
  if (dynamic_cast<const torch::optim::LBFGSOptions*>(&options) == nullptr) return;
  throw InvalidArgument(
      "cannot-shard", "ZeroRedundancyOptimizer cannot shard " + class_of(options) + ".",
      "its step uses dot products over all parameters, but each rank updates only its own.",
      "use another optimizer, or use this one without sharding after DistributedDataParallel.");
}

/// Tensors with the shapes of the parameters, but only one element in memory.
std::vector<at::Tensor> stand_ins_of(const Groups& groups) {
  std::vector<at::Tensor> stand_ins;
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor element =
          at::zeros({}, parameter.options().dtype(state_dtype_of(parameter.scalar_type())));
      stand_ins.push_back(element.expand(parameter.sizes()).set_requires_grad(true));
    }
  }
  return stand_ins;
}

/// The options of groups that have none of their own.
std::unique_ptr<torch::optim::Optimizer> sample_of(const Factory& make, const Groups& groups) {
  auto optimizer = make(one_group(stand_ins_of(groups)));
  if (optimizer != nullptr) return optimizer;
  throw InvalidArgument(
      "factory-parameters",
      "the factory did not make an optimizer of the parameter groups that it was given.",
      "it is called with the shards of this rank, one group for each parameter group.",
      "pass the factory's argument to the optimizer's constructor.");
}

/// LibTorch's optimizer for these options.
Factory factory_of(const Options& defaults) {
  const StateFormat* const format = state_format_of(defaults);
  if (format != nullptr && format->make_optimizer({}, defaults) != nullptr) {
    const std::shared_ptr<const Options> kept = defaults.clone();
    return [=](Groups groups) { return format->make_optimizer(std::move(groups), *kept); };
  }
  throw InvalidArgument(
      "unknown-options", "ZeroRedundancyOptimizer got options of type " + class_of(defaults) + ".",
      "supported are the options of SGD, Adam, AdamW, RMSprop, Adagrad, LAMB and LARS.",
      "pass a factory, which makes an optimizer from parameter groups.");
}

/// The partition for an optimizer that a factory has made. A class derived from one of LibTorch's
/// may compute anything.
Partition partition_for(const torch::optim::Optimizer& optimizer) {
  const std::type_info& type = typeid(optimizer);
  const bool is_element_wise =
      type == typeid(torch::optim::SGD) || type == typeid(torch::optim::Adam) ||
      type == typeid(torch::optim::AdamW) || type == typeid(torch::optim::RMSprop) ||
      type == typeid(torch::optim::Adagrad);
  return is_element_wise ? Partition::kElements : Partition::kParameters;
}

/// All groups have options of one type, which an archive has. Asked before LibTorch takes the
/// group: since 2.15 it puts options of the optimizer's own type in the place of others.
void check_options_of(const torch::optim::OptimizerParamGroup& group, size_t index,
                      const Options& defaults) {
  if (!group.has_options()) return;
  const Options& options = group.options();
  if (typeid(options) == typeid(defaults)) return;
  throw InvalidArgument("group-options-type",
                        "parameter group " + std::to_string(index) + " has options of type " +
                            class_of(options) + ".",
                        "the optimizer's options are of type " + class_of(defaults) +
                            ", and all its groups are stepped and saved in the same way.",
                        "make one optimizer for each type.");
}

/// The names that DistributedDataParallel has for parameters, by TensorImpl.
std::unordered_map<const void*, std::string> names_of(const std::vector<at::Tensor>& parameters) {
  std::unordered_map<const void*, std::string> names;
  const void* last = nullptr;
  for (const at::Tensor& parameter : parameters) {
    const auto link = Replica::of(parameter);
    if (!link || link->replica == nullptr || link.get() == last) continue;
    last = link.get();
    for (const auto& [name, tensor] : link->replica->parameters()) {
      names[tensor.unsafeGetTensorImpl()] = name;
    }
  }
  return names;
}

bool are_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return x.is_same(y); });
}

/// The key of a parameter in an archive.
std::string key_of(size_t group, size_t parameter) {
  return std::to_string(group) + "/" + std::to_string(parameter);
}

/// The steps of the parameters of each group; undefined if the archive does not have them.
std::vector<at::Tensor> steps_in(torch::serialize::InputArchive& archive, const Groups& groups) {
  std::vector<at::Tensor> steps(groups.size());
  torch::serialize::InputArchive saved;
  if (!archive.try_read(kParameterSteps, saved)) return steps;
  for (size_t i = 0; i < groups.size(); ++i) {
    saved.try_read(std::to_string(i), steps[i], /*is_buffer=*/true);
    const auto parameters = static_cast<int64_t>(groups[i].params().size());
    if (steps[i].defined() && steps[i].numel() != parameters) steps[i] = at::Tensor();
  }
  return steps;
}

}  // namespace

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(Groups groups, const Options& defaults,
                                                 const ZeroOptions& zero)
    : Optimizer(Groups(), defaults.clone()) {
  begin(std::move(groups), {}, zero, Partition::kElements);
}

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(std::vector<at::Tensor> parameters,
                                                 const Options& defaults, const ZeroOptions& zero)
    : ZeroRedundancyOptimizer(one_group(std::move(parameters)), defaults, zero) {}

struct ZeroRedundancyOptimizer::Sample {
  explicit Sample(const torch::optim::Optimizer& optimizer)
      : defaults(optimizer.defaults().clone()), partition(partition_for(optimizer)) {}

  std::unique_ptr<Options> defaults;
  Partition partition;
};

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(Groups groups, Factory make, Sample sample,
                                                 const ZeroOptions& zero)
    : Optimizer(Groups(), std::move(sample.defaults)) {
  begin(std::move(groups), std::move(make), zero, sample.partition);
}

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(Groups groups, Factory make,
                                                 const ZeroOptions& zero)
    : ZeroRedundancyOptimizer(groups, make, Sample(*sample_of(make, groups)), zero) {}

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(std::vector<at::Tensor> parameters, Factory make,
                                                 const ZeroOptions& zero)
    : ZeroRedundancyOptimizer(one_group(std::move(parameters)), std::move(make), zero) {}

ZeroRedundancyOptimizer::~ZeroRedundancyOptimizer() = default;

std::vector<at::Tensor> ZeroRedundancyOptimizer::tensors_of(const Replica& replica) {
  std::vector<at::Tensor> tensors;
  for (const auto& named : replica.parameters()) tensors.push_back(named.second);
  return tensors;
}

/// The common part of the constructors. `make`: empty for known options. `known`: the partition if
/// `zero` does not set one.
void ZeroRedundancyOptimizer::begin(Groups groups, Factory make, const ZeroOptions& zero,
                                    Partition known) {
  for (const auto& group : groups) take_group(group);
  check_options();
  std::vector<ShardedOptimizer::ParameterGroup> planned;
  for (size_t i = 0; i < param_groups_.size(); ++i) planned.push_back(planned_group(i));
  const bool is_fused = !make && update_rule_of(*defaults_) != nullptr;
  if (!make && !is_fused) make = factory_of(*defaults_);
  engine_ = std::make_unique<ShardedOptimizer>(std::move(planned), zero.group, zero.gradients,
                                               zero.master_weights, zero.partition.value_or(known),
                                               zero.shard_over);
  if (zero.overlap_with_ddp) engine_->set_arrival(ParameterArrival::kForward);
  for (const auto& group : param_groups_) known_groups_.push_back(group.params());
  if (is_fused) {
    stepper_ = std::make_unique<FusedStepper>(*engine_, param_groups_);
  } else {
    stepper_ = std::make_unique<InnerStepper>(*engine_, param_groups_, std::move(make));
  }
}

/// With its own options where LibTorch does not know their type: since 2.15 it puts the defaults in
/// their place.
void ZeroRedundancyOptimizer::take_group(const torch::optim::OptimizerParamGroup& group) {
  check_options_of(group, param_groups_.size(), *defaults_);
  Optimizer::add_param_group(group);
  const StateFormat* const format = state_format_of(*defaults_);
  const bool is_libtorchs = format != nullptr && format->make_optimizer({}, *defaults_) != nullptr;
  if (is_libtorchs || !group.has_options()) return;
  param_groups_.back().set_options(group.options().clone());
}

void ZeroRedundancyOptimizer::check_options() const {
  check_can_be_divided(*defaults_);
  for (size_t i = 0; i < param_groups_.size(); ++i) {
    check_options_of(param_groups_[i], i, *defaults_);
  }
}

/// Checks that each group still has the parameters that engine_ knows.
void ZeroRedundancyOptimizer::check_known_groups() const {
  for (size_t i = 0; i < known_groups_.size(); ++i) {
    if (are_same(known_groups_[i], param_groups_[i].params())) continue;
    throw InvalidArgument(
        "parameters-replaced",
        "the parameters of group " + std::to_string(i) + " were replaced, or others were added.",
        "the optimizer divided its parameters into shards when they were added.",
        "call add_param_group() on every rank, or make a new optimizer.");
  }
}

ShardedOptimizer::ParameterGroup ZeroRedundancyOptimizer::planned_group(size_t index) const {
  const std::vector<at::Tensor>& parameters = param_groups_[index].params();
  const auto known_names = names_of(parameters);
  std::vector<std::string> names;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto found = known_names.find(parameters[i].unsafeGetTensorImpl());
    names.push_back(found != known_names.end() ? found->second
                                               : "param_groups()[" + std::to_string(index) +
                                                     "].params()[" + std::to_string(i) + "]");
  }
  return {parameters, std::move(names)};
}

/// Adds groups that engine_ does not have yet. Collective if there are any.
void ZeroRedundancyOptimizer::take_new_groups() {
  for (size_t i = known_groups_.size(); i < param_groups_.size(); ++i) {
    known_groups_.reserve(i + 1);
    std::vector<at::Tensor> known = param_groups_[i].params();
    engine_->add_group(planned_group(i), [this] { stepper_->prepare_group(); });
    known_groups_.push_back(std::move(known));
    stepper_->add_group();
  }
}

at::Tensor ZeroRedundancyOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  try {
    if (closure) {
      const c10::AutoGradMode with_grad(true);
      loss = closure();
    }
    prepare_step();
  } catch (...) {
    engine_->fail_step(text_of_exception());
    throw;
  }
  stepper_->step();
  return loss;
}

void ZeroRedundancyOptimizer::prepare_step() {
  forget_consolidated();
  check_options();
  check_known_groups();
  take_new_groups();
  stepper_->read();
}

double ZeroRedundancyOptimizer::clip_grad_norm_(double max_norm, double norm_type,
                                                bool error_if_nonfinite) {
  return engine_->clip_grad_norm(max_norm, norm_type, error_if_nonfinite);
}

void ZeroRedundancyOptimizer::clip_grad_value_(double clip_value) {
  engine_->clip_grad_value(clip_value);
}

void ZeroRedundancyOptimizer::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  forget_consolidated();
  take_group(group);
  try {
    check_options();
    take_new_groups();
  } catch (...) {
    param_groups_.pop_back();
    throw;
  }
}

void ZeroRedundancyOptimizer::rebuild(const Group& group) {
  forget_consolidated();
  stepper_->rebuild(group);
}

void ZeroRedundancyOptimizer::wait() { engine_->wait(); }

void ZeroRedundancyOptimizer::consolidate_state_dict(int to) {
  if (to < 0 || to >= world_size()) {
    throw InvalidArgument("consolidate-rank",
                          "consolidate_state_dict() got to=" + std::to_string(to) + ".",
                          "the group has ranks 0 to " + std::to_string(world_size() - 1) + ".",
                          "pass the rank that saves; it must be the same on every rank.");
  }
  forget_consolidated();
  const std::optional<int> receiver = engine_->shard_rank_of(to);
  if (!receiver) return;  // its host has all shards itself
  FullStates states = stepper_->gather(*receiver);
  if (rank() != to) return;
  is_consolidated_ = true;
  for (size_t i = 0; i < states.size(); ++i) {
    masters_.emplace_back();
    for (size_t j = 0; j < states[i].size(); ++j) {
      auto& state = states[i][j].state;
      const at::Tensor& parameter = param_groups_[i].params()[j];
      if (state) state_[parameter.unsafeGetTensorImpl()] = std::move(state);
      masters_.back().push_back(states[i][j].master);
    }
  }
}

void ZeroRedundancyOptimizer::forget_consolidated() {
  is_consolidated_ = false;
  state_.clear();
  masters_.clear();
}

void ZeroRedundancyOptimizer::save(torch::serialize::OutputArchive& archive) const {
  if (!is_consolidated_) {
    throw InvalidArgument(
        "state-not-consolidated",
        "save() was called on rank " + std::to_string(rank()) + " of " +
            std::to_string(world_size()) + ", which does not have the whole optimizer state.",
        "each rank keeps the state of its shards; consolidate_state_dict() was not called, or a "
        "step came after it.",
        "call consolidate_state_dict(" + std::to_string(rank()) + ") on every rank first.");
  }
  stepper_->format().save(archive, *this);
  torch::serialize::OutputArchive masters(archive.compilation_unit());
  bool has_masters = false;
  for (size_t i = 0; i < masters_.size(); ++i) {
    for (size_t j = 0; j < masters_[i].size(); ++j) {
      if (!masters_[i][j].defined()) continue;
      masters.write(key_of(i, j), masters_[i][j], /*is_buffer=*/true);
      has_masters = true;
    }
  }
  if (has_masters) archive.write(kMasterParameters, masters);
  if (engine_->master_weights().stochastic_rounding) save_steps(archive);
}

/// Stochastic rounding continues from these steps, which LibTorch's SGD does not save.
void ZeroRedundancyOptimizer::save_steps(torch::serialize::OutputArchive& archive) const {
  torch::serialize::OutputArchive steps(archive.compilation_unit());
  for (size_t i = 0; i < known_groups_.size(); ++i) {
    steps.write(std::to_string(i), at::tensor(engine_->steps(i), at::kLong), /*is_buffer=*/true);
  }
  archive.write(kParameterSteps, steps);
}

void ZeroRedundancyOptimizer::load(torch::serialize::InputArchive& archive) {
  const StateFormat& format = stepper_->format();
  check_options();
  Draft draft(param_groups_, defaults_->clone());
  try {
    format.load(archive, draft);
  } catch (const c10::Error& error) {
    throw InvalidArgument("load-archive",
                          "load() got an archive that does not match this optimizer.",
                          error.what_without_backtrace(),
                          "load the state of an optimizer with the same options, groups and "
                          "parameters, in the same order.");
  }
  torch::serialize::InputArchive masters;
  const bool has_masters = archive.try_read(kMasterParameters, masters);
  const std::vector<at::Tensor> steps = steps_in(archive, param_groups_);
  FullStates states;
  for (size_t i = 0; i < param_groups_.size(); ++i) {
    states.emplace_back();
    for (size_t j = 0; j < param_groups_[i].params().size(); ++j) {
      FullState whole;
      const auto found = draft.state().find(param_groups_[i].params()[j].unsafeGetTensorImpl());
      if (found != draft.state().end()) whole.state = std::move(found->second);
      if (has_masters) masters.try_read(key_of(i, j), whole.master, /*is_buffer=*/true);
      if (steps[i].defined()) whole.steps = steps[i][static_cast<int64_t>(j)].item<int64_t>();
      states.back().push_back(std::move(whole));
    }
  }
  check_states(states, format, draft.param_groups());
  for (size_t i = 0; i < param_groups_.size(); ++i) {
    format.copy(draft.param_groups()[i].options(), param_groups_[i].options());
  }
  take_states(WholeStates(states, format, param_groups_));
}

std::vector<OwnedState> ZeroRedundancyOptimizer::owned_states() {
  if (!engine_->shard_rank_of(0)) return {};
  return stepper_->owned();
}

const StateFormat& ZeroRedundancyOptimizer::state_format() const { return stepper_->format(); }

void ZeroRedundancyOptimizer::take_states(const SavedStates& states) {
  forget_consolidated();
  plan_frozen(states);
  stepper_->load(states);
}

/// Makes shards for parameters that have a state, also while they are frozen. Collective if there
/// are any.
void ZeroRedundancyOptimizer::plan_frozen(const SavedStates& states) {
  bool has_frozen = false;
  for (size_t i = 0; i < param_groups_.size(); ++i) {
    std::vector<int64_t> steps = engine_->steps(i);
    const std::vector<bool> planned = engine_->are_planned(i);
    for (size_t j = 0; j < param_groups_[i].params().size(); ++j) {
      if (planned[j] || !states.outline(i, j).exists) continue;
      has_frozen = true;
      steps[j] = std::max<int64_t>(steps[j], 1);
    }
    engine_->set_steps(i, steps);
  }
  if (has_frozen) stepper_->rebuild({});
}

int64_t ZeroRedundancyOptimizer::state_bytes() const { return stepper_->state_bytes(); }
int ZeroRedundancyOptimizer::rank() const { return engine_->rank(); }
int ZeroRedundancyOptimizer::world_size() const { return engine_->world_size(); }

}  // namespace farandole
