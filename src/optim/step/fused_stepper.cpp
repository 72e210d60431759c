// SPDX-License-Identifier: Apache-2.0
#include "optim/step/fused_stepper.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "farandole/optim/rule_of_options.h"
#include "optim/state/shard_state.h"

namespace farandole {
namespace {

/// The tensor with this name; null if the state has none.
const at::Tensor* field_of(const StateFields& fields, const std::string& name) {
  for (const auto& [field, tensor] : fields.tensors) {
    if (field == name) return tensor->defined() ? tensor : nullptr;
  }
  return nullptr;
}

}  // namespace

FusedStepper::FusedStepper(ShardedOptimizer& engine, const Groups& groups)
    : engine_(engine), groups_(groups) {}

void FusedStepper::read() {
  UpdateRules rules;
  for (const auto& group : groups_) rules.push_back(update_rule_of(group.options()));
  rules_ = std::move(rules);
}

void FusedStepper::rebuild(const Group& group) {
  engine_.begin_rebuild(group);
  engine_.finish_rebuild();
}

FullStates FusedStepper::gather(int to) {
  read();
  engine_.make_state(rules_);
  FullStates states;
  for (size_t group = 0; group < groups_.size(); ++group) {
    states.push_back(gather_group(group, to));
  }
  return states;
}

std::vector<FullState> FusedStepper::gather_group(size_t group, int to) {
  std::vector<std::vector<at::Tensor>> pieces;  // by field
  const std::vector<std::string> used = rules_[group]->state_names();
  for (const std::string& name : field_names()) {
    const bool is_used = std::find(used.begin(), used.end(), name) != used.end();
    pieces.push_back(is_used ? engine_.state(group, name) : std::vector<at::Tensor>());
  }
  auto states = gather_states(
      engine_, format(), group, outlines(group),
      [&](size_t field, size_t piece) { return pieces[field][piece]; }, to);
  gather_masters(engine_, group, groups_[group].params(), states, to);
  return states;
}

/// Every rank counts the steps of all parameters, also of those that it has no piece of.
std::vector<StateOutline> FusedStepper::outlines(size_t group) const {
  const std::vector<std::string> names = field_names();
  const std::vector<std::string> used = rules_[group]->state_names();
  const std::vector<int64_t> steps = engine_.steps(group);
  std::vector<StateOutline> outlines;
  for (size_t i = 0; i < steps.size(); ++i) {
    StateOutline outline;
    outline.exists = steps[i] > 0 && !used.empty();
    outline.step = steps[i];
    const auto dtype = state_dtype_of(groups_[group].params()[i].scalar_type());
    for (const std::string& name : names) {
      const bool is_used = std::find(used.begin(), used.end(), name) != used.end();
      outline.dtypes.push_back(is_used ? std::optional(dtype) : std::nullopt);
    }
    outlines.push_back(std::move(outline));
  }
  return outlines;
}

void FusedStepper::load(const FullStates& states) {
  const c10::NoGradGuard no_grad;
  read();
  engine_.make_state(rules_);
  for (size_t group = 0; group < groups_.size(); ++group) load_group(group, states[group]);
}

void FusedStepper::load_group(size_t group, const std::vector<FullState>& states) {
  const std::vector<at::Tensor>& parameters = groups_[group].params();
  const auto pieces = engine_.pieces(group);
  std::vector<int64_t> steps;
  std::vector<bool> has_state;
  for (const FullState& whole : states) {
    const int64_t* const step = whole.state ? format().fields(*whole.state).step : nullptr;
    const int64_t known = !whole.state ? 0 : step == nullptr ? 1 : *step;
    const int64_t least = whole.master.defined() ? 1 : 0;  // only those of stepped ones are saved
    steps.push_back(std::max(whole.steps.value_or(known), least));
    has_state.push_back(whole.state != nullptr);
  }
  for (const std::string& name : rules_[group]->state_names()) {
    const std::vector<at::Tensor> arrays = engine_.state(group, name);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const size_t parameter = pieces[i].parameter;
      const auto& state = states[parameter].state;
      const at::Tensor* const saved = state ? field_of(format().fields(*state), name) : nullptr;
      if (saved == nullptr) {
        arrays[i].zero_();
      } else {
        arrays[i].copy_(part_of(*saved, parameters[parameter], pieces[i]));
      }
    }
  }
  load_masters(engine_, group, parameters, states);
  engine_.set_steps(group, steps, has_state);
}

std::vector<std::string> FusedStepper::field_names() const {
  std::vector<std::string> names;
  for (const auto& field : format().fields(*format().make_state()).tensors) {
    names.push_back(field.first);
  }
  return names;
}

}  // namespace farandole
