// SPDX-License-Identifier: Apache-2.0
#include "optim/step/fused_stepper.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "farandole/optim/rule_of_options.h"
#include "optim/shards/shard_tensors.h"
#include "optim/state/shard_state.h"

namespace farandole {
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

std::vector<OwnedState> FusedStepper::owned() {
  read();
  engine_.make_state(rules_);
  const bool counts = format().fields(*format().make_state()).step != nullptr ||
                      engine_.master_weights().stochastic_rounding;  // which goes on from there
  std::vector<OwnedState> all;
  for (size_t group = 0; group < groups_.size(); ++group) {
    std::vector<std::pair<std::string, std::vector<at::Tensor>>> arrays;
    for (const std::string& name : rules_[group]->state_names()) {
      arrays.emplace_back(name, engine_.state(group, name));
    }
    const std::vector<int64_t> steps = engine_.steps(group);
    const auto pieces = engine_.pieces(group);
    const auto masters = masters_of(engine_, group, groups_[group].params());
    for (size_t i = 0; i < pieces.size(); ++i) {
      const int64_t step = steps[pieces[i].parameter];
      if (step == 0) continue;
      OwnedState own{group, pieces[i], {}, counts ? std::optional(step) : std::nullopt};
      for (const auto& [name, array] : arrays) own.parts.emplace_back(name, array[i]);
      if (masters[i].defined()) own.parts.emplace_back(kMasterParameter, masters[i]);
      all.push_back(std::move(own));
    }
  }
  return all;
}

void FusedStepper::load(const SavedStates& states) {
  const c10::NoGradGuard no_grad;
  read();
  engine_.make_state(rules_);
  for (size_t group = 0; group < groups_.size(); ++group) load_group(group, states);
}

void FusedStepper::load_group(size_t group, const SavedStates& states) {
  std::vector<int64_t> steps;
  std::vector<bool> has_state;
  for (size_t i = 0; i < groups_[group].params().size(); ++i) {
    const SavedStates::Outline outline = states.outline(group, i);
    const int64_t least = outline.has_master ? 1 : 0;  // only those of stepped ones are saved
    steps.push_back(std::max(outline.step, least));
    has_state.push_back(outline.exists);
  }
  const auto pieces = engine_.pieces(group);
  for (const std::string& name : rules_[group]->state_names()) {
    const std::vector<at::Tensor> arrays = engine_.state(group, name);
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (!states.copy_part(group, pieces[i], name, arrays[i])) arrays[i].zero_();
    }
  }
  load_masters(engine_, group, groups_[group].params(), states);
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
