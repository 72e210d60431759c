// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/training/optimizer_states.h"

#include <ATen/ops/empty_strided.h>
#include <torch/optim/adagrad.h>

#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "checkpoint/training/optimizer_options.h"
#include "checkpoint/training/values_json.h"
#include "farandole/error.h"
#include "farandole/optim/rule_of_options.h"
#include "farandole/optim/zero_redundancy_optimizer.h"
#include "optim/shards/shard_tensors.h"
#include "optim/state/full_state.h"
#include "optim/state/owned_state.h"
#include "optim/state/saved_states.h"
#include "optim/state/state_format.h"

namespace farandole::checkpoint {
namespace {

using Names = std::vector<std::vector<std::string>>;  // by group and parameter
using Piece = ShardedOptimizer::Piece;

constexpr char kStep[] = "step";

Json tensor_json(const std::string& key) { return Json::Object{{"!tensor", key}}; }

/// As Python's optimizers count: torch's own a tensor of float32.
Json step_json(int64_t step) { return float_scalar(static_cast<float>(step)); }

CheckpointError other_optimizer(const std::string& has, const std::string& why,
                                const std::string& fix) {
  return {"checkpoint-other-optimizer", "the checkpoint has " + has + ".", why + ".", fix};
}

/// The states of parameters by name, as JSON.
using States = std::map<std::string, Json>;

States sharded_states(ZeroRedundancyOptimizer& optimizer, const std::string& prefix,
                      const Names& names, SliceList& slices) {
  Json::Object own;
  std::set<std::string> seen;
  for (const OwnedState& each : optimizer.owned_states()) {
    const std::string& name = names[each.group][each.piece.parameter];
    const at::Tensor& parameter =
        optimizer.param_groups()[each.group].params()[each.piece.parameter];
    Json::Object state;
    if (each.step) state.emplace_back(kStep, step_json(*each.step));
    for (const auto& [part, elements] : each.parts) {
      const std::string key = prefix + name + "/" + part;
      slices.add_part(key, parameter, each.piece.offset, elements);
      state.emplace_back(part, tensor_json(key));
    }
    if (seen.insert(name).second) own.emplace_back(name, std::move(state));
  }
  States states;
  for (const std::string& text : optimizer.engine().all_gather(Json(std::move(own)).dump())) {
    const Json parsed = Json::parse(text);
    for (const auto& [name, state] : parsed.object()) states.try_emplace(name, state);
  }
  return states;
}

States unsharded_states(torch::optim::Optimizer& optimizer, const std::string& prefix,
                        const Names& names, SliceList& slices) {
  const StateFormat& format = *state_format_of(optimizer.defaults());
  States states;
  for (size_t group = 0; group < names.size(); ++group) {
    const auto& parameters = optimizer.param_groups()[group].params();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto found = optimizer.state().find(parameters[i].unsafeGetTensorImpl());
      if (found == optimizer.state().end() || !found->second) continue;
      if (!format.has(*found->second)) throw_unknown_class();
      if (states.count(names[group][i]) > 0) continue;  // LibTorch lists tied parameters twice
      const StateFields fields = format.fields(*found->second);
      Json::Object state;
      if (fields.step != nullptr) state.emplace_back(kStep, step_json(*fields.step));
      for (const auto& [part, tensor] : fields.tensors) {
        if (!tensor->defined()) continue;
        const std::string key = prefix + names[group][i] + "/" + part;
        slices.add_shared(key, *tensor);
        state.emplace_back(part, tensor_json(key));
      }
      states[names[group][i]] = std::move(state);
    }
  }
  return states;
}

/// What was saved of an optimizer, by the groups and parameters of the present one; parts are read
/// when they are asked for, and kept.
class Staged final : public SavedStates {
 public:
  Staged(const torch::optim::Optimizer& optimizer, Names names, const Json& saved,
         const CheckpointReader& reader)
      : optimizer_(optimizer), names_(std::move(names)), reader_(reader) {
    for (const auto& [name, state] : saved.at("states").object("the states")) {
      states_[name] = &state;
    }
  }

  /// Null if there is none.
  const Json* state(size_t group, size_t parameter) const {
    const auto found = states_.find(names_[group][parameter]);
    return found == states_.end() ? nullptr : found->second;
  }

  Outline outline(size_t group, size_t parameter) const override {
    const Json* const state = this->state(group, parameter);
    if (state == nullptr || state->object("a state").empty()) return {};
    Outline outline;
    outline.has_master = state->find(kMasterParameter) != nullptr;
    const size_t others = (outline.has_master ? 1 : 0) + (state->find(kStep) != nullptr ? 1 : 0);
    outline.exists = state->object().size() > others;
    outline.step = step(*state).value_or(1);
    return outline;
  }

  static std::optional<int64_t> step(const Json& state) {
    const Json* const step = state.find(kStep);
    if (step == nullptr) return std::nullopt;
    return static_cast<int64_t>(number_of(*step));
  }

  at::Tensor part(size_t group, const Piece& piece, const std::string& name) const override {
    const Json* const value = find(group, piece.parameter, name);
    if (value == nullptr) return {};
    const at::Tensor& parameter = this->parameter(group, piece.parameter);
    at::Tensor& kept = parts_[{group, piece.parameter, piece.offset, name}];
    if (kept.defined() && kept.numel() == piece.elements) return kept;
    const Json* const key = value->find("!tensor");
    if (key != nullptr && lies_as(key->string("a key"), parameter)) {
      kept = reader_.stage(key->string(), piece.offset, piece.elements);
    } else {
      kept = part_of(whole(group, piece.parameter, name), parameter, piece);
    }
    return kept;
  }

  /// In its shape. Undefined if there is none.
  at::Tensor whole(size_t group, size_t parameter, const std::string& name) const {
    const Json* const value = find(group, parameter, name);
    if (value == nullptr) return {};
    return tensor_of(*value, [this](const std::string& key) { return reader_.stage(key); });
  }

  /// Throws CheckpointError unless the tensors of the states fit the present parameters, and
  /// `options` of the groups have what they need.
  void check(const std::vector<std::unique_ptr<torch::optim::OptimizerOptions>>& options) const {
    for (size_t group = 0; group < names_.size(); ++group) {
      const auto rule = update_rule_of(*options[group]);
      for (size_t i = 0; i < names_[group].size(); ++i) {
        const Json* const state = this->state(group, i);
        if (state == nullptr || !outline(group, i).exists) continue;
        for (const auto& [name, value] : state->object()) check_value(group, i, name, value);
        for (const std::string& needed : rule ? rule->state_names() : std::vector<std::string>()) {
          if (state->find(kStep) == nullptr || state->find(needed) != nullptr) continue;
          throw other_optimizer("a state of " + names_[group][i] + " without '" + needed + "'",
                                "the options of the optimizer require it: " + rule->description(),
                                "load the state of an optimizer of the same class and options.");
        }
      }
    }
  }

 private:
  const at::Tensor& parameter(size_t group, size_t index) const {
    return optimizer_.param_groups()[group].params()[index];
  }

  const Json* find(size_t group, size_t parameter, const std::string& name) const {
    const Json* const state = this->state(group, parameter);
    return state == nullptr ? nullptr : state->find(name);
  }

  bool lies_as(const std::string& key, const at::Tensor& parameter) const {
    const std::vector<int64_t>& strides = entry(key).strides;
    const std::vector<int64_t> own = saved_strides(parameter);
    for (size_t dim = 0; dim < own.size(); ++dim) {
      if (parameter.sizes()[dim] > 1 && strides[dim] != own[dim]) return false;
    }
    return true;
  }

  const CheckpointReader::Entry& entry(const std::string& key) const {
    const auto found = reader_.entries().find(key);
    if (found != reader_.entries().end()) return found->second;
    throw other_optimizer("no tensor '" + key + "', which its index names",
                          "its files are not those that were saved",
                          "load another checkpoint, or restore this one from a copy.");
  }

  void check_value(size_t group, size_t index, const std::string& name, const Json& value) const {
    const Json* const key = value.is_object() ? value.find("!tensor") : nullptr;
    if (key == nullptr) return;
    const CheckpointReader::Entry& saved = entry(key->string("a key"));
    const at::IntArrayRef own = parameter(group, index).sizes();
    if (own == at::IntArrayRef(saved.shape)) return;
    throw other_optimizer("'" + name + "' of " + names_[group][index] + " with the shape " +
                              c10::str(at::IntArrayRef(saved.shape)),
                          "the parameter has the shape " + c10::str(own),
                          "load it with the model that was saved.");
  }

  const torch::optim::Optimizer& optimizer_;
  const Names names_;
  std::map<std::string, const Json*> states_;  ///< by the names of parameters
  const CheckpointReader& reader_;
  mutable std::map<std::tuple<size_t, size_t, int64_t, std::string>, at::Tensor> parts_;
};

/// The saved hyperparameters of each present group, whatever the order of the groups.
std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> fitting_options(
    const torch::optim::Optimizer& optimizer, const Names& names, const Json& saved) {
  std::map<std::string, const Json*> group_of;
  for (const Json& group : saved.at("groups").array()) {
    for (const Json& name : group.at("params").array()) group_of[name.string("a name")] = &group;
  }
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;
  for (size_t group = 0; group < names.size(); ++group) {
    const Json* found = nullptr;
    for (const std::string& name : names[group]) {
      const auto own = group_of.find(name);
      if (own == group_of.end()) {
        throw other_optimizer(
            "no optimizer state of " + name,
            "group " + std::to_string(group) +
                " of the optimizer has it; parameters are found by name",
            "load it with the model whose optimizer was saved, and pass the model too, "
            "which knows the names.");
      }
      if (found != nullptr && found != own->second) {
        throw other_optimizer(
            names[group][0] + " and " + name + " in different groups of the optimizer",
            "group " + std::to_string(group) +
                " has both now, and can have the hyperparameters of one alone",
            "divide the parameters into the groups that were saved; their order may "
            "differ.");
      }
      found = own->second;
    }
    const auto& present = optimizer.param_groups()[group].options();
    options.push_back(found == nullptr ? present.clone()
                                       : options_of(found->at("hyperparameters"), present));
  }
  return options;
}

/// Of an unsharded optimizer: whole states, null where there is none.
std::vector<std::unique_ptr<torch::optim::OptimizerParamState>> whole_states(
    torch::optim::Optimizer& optimizer, const StateFormat& format, const Staged& staged) {
  std::vector<std::unique_ptr<torch::optim::OptimizerParamState>> states;
  for (size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    const auto& parameters = optimizer.param_groups()[group].params();
    for (size_t i = 0; i < parameters.size(); ++i) {
      states.emplace_back();
      const SavedStates::Outline outline = staged.outline(group, i);
      if (!outline.exists) continue;
      states.back() = format.make_state();
      const StateFields fields = format.fields(*states.back());
      if (fields.step != nullptr) *fields.step = outline.step;
      for (const auto& [name, tensor] : fields.tensors) {
        const at::Tensor saved = staged.whole(group, i, name);
        if (!saved.defined()) continue;
        *tensor = at::empty_strided(parameters[i].sizes(), saved_strides(parameters[i]),
                                    saved.options().device(parameters[i].device()));
        tensor->copy_(saved);
      }
    }
  }
  return states;
}

/// Reads what this rank needs of them.
void stage_pieces(ZeroRedundancyOptimizer& optimizer, const Staged& staged) {
  const StateFormat& format = optimizer.state_format();
  std::vector<std::string> names{kMasterParameter};
  for (const auto& field : format.fields(*format.make_state()).tensors)
    names.push_back(field.first);
  if (!optimizer.engine().master_weights().keep) names.erase(names.begin());
  for (size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    for (const Piece& piece : optimizer.engine().pieces(group)) {
      for (const std::string& name : names) staged.part(group, piece, name);
    }
  }
}

/// What the constructor of Adagrad makes stays until a step has used it.
bool is_initial(const torch::optim::OptimizerParamState& state) {
  const auto* const adagrad = dynamic_cast<const torch::optim::AdagradParamState*>(&state);
  return adagrad != nullptr && adagrad->step() == 0;
}

}  // namespace

Json save_optimizer(torch::optim::Optimizer& optimizer, const std::string& prefix,
                    const ParameterNames& known, SliceList& slices) {
  const std::string name = class_name_of(optimizer.defaults());
  const Names names = names_by_group(optimizer, known);
  auto* const sharded = dynamic_cast<ZeroRedundancyOptimizer*>(&optimizer);
  if (sharded != nullptr) sharded->wait();  // for parameters that are on their way
  const States states = sharded != nullptr ? sharded_states(*sharded, prefix, names, slices)
                                           : unsharded_states(optimizer, prefix, names, slices);
  Json::Array groups;
  for (size_t group = 0; group < names.size(); ++group) {
    groups.emplace_back(
        Json::Object{{"params", Json::Array(names[group].begin(), names[group].end())},
                     {"hyperparameters", json_of(optimizer.param_groups()[group].options())}});
  }
  return Json::Object{{"class", name},
                      {"groups", std::move(groups)},
                      {"states", Json::Object(states.begin(), states.end())}};
}

std::function<void()> load_optimizer(torch::optim::Optimizer& optimizer,
                                     const ParameterNames& known, const CheckpointReader& reader,
                                     const Json& saved) {
  const std::string own = class_name_of(optimizer.defaults());
  const std::string& other = saved.at("class").string("a class");
  if (own != other) {
    throw other_optimizer("the state of an optimizer " + other,
                          "the one that is to be loaded into is " + own,
                          "make the optimizer of the class that was saved.");
  }
  Names names = names_by_group(optimizer, known);
  auto options = std::make_shared<std::vector<std::unique_ptr<torch::optim::OptimizerOptions>>>(
      fitting_options(optimizer, names, saved));
  const auto staged = std::make_shared<Staged>(optimizer, std::move(names), saved, reader);
  staged->check(*options);
  const auto take_options = [&optimizer, options] {
    for (size_t group = 0; group < options->size(); ++group) {
      optimizer.param_groups()[group].set_options(std::move((*options)[group]));
    }
  };
  if (auto* const sharded = dynamic_cast<ZeroRedundancyOptimizer*>(&optimizer)) {
    stage_pieces(*sharded, *staged);
    return [=] {
      take_options();
      sharded->take_states(*staged);
    };
  }
  const StateFormat& format = *state_format_of(optimizer.defaults());
  auto states = std::make_shared<std::vector<std::unique_ptr<torch::optim::OptimizerParamState>>>(
      whole_states(optimizer, format, *staged));
  return [&optimizer, take_options, states] {
    take_options();
    size_t next = 0;
    for (const auto& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        auto& state = (*states)[next++];
        auto& present = optimizer.state();
        const void* const key = parameter.unsafeGetTensorImpl();
        const auto found = present.find(const_cast<void*>(key));
        if (state) {
          present[const_cast<void*>(key)] = std::move(state);
        } else if (found != present.end() && found->second && !is_initial(*found->second)) {
          present.erase(found);
        }
      }
    }
  };
}

}  // namespace farandole::checkpoint
