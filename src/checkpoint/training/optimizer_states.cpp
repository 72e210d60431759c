// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/training/optimizer_states.h"

#include <ATen/ops/empty_strided.h>
#include <torch/optim/adagrad.h>

#include <map>
#include <optional>
#include <set>
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
constexpr char kTensor[] = "!tensor";  ///< in JSON: the key of a tensor

Json tensor_json(const std::string& key) { return Json::Object{{kTensor, key}}; }

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

/// What was saved of an optimizer, by the groups and parameters of the present one; read when it is
/// asked for.
class StatesInCheckpoint final : public SavedStates {
 public:
  StatesInCheckpoint(const torch::optim::Optimizer& optimizer, Names names, const Json& saved,
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

  std::optional<at::ScalarType> dtype(size_t group, size_t parameter,
                                      const std::string& name) const override {
    const Json* const value = find(group, parameter, name);
    if (value == nullptr) return std::nullopt;
    const Json* const key = value->find(kTensor);
    if (key != nullptr) return entry(key->string("a key")).dtype;
    return whole(*value).scalar_type();
  }

  bool copy_part(size_t group, const Piece& piece, const std::string& name,
                 const at::Tensor& into) const override {
    const Json* const value = find(group, piece.parameter, name);
    if (value == nullptr) return false;
    const at::Tensor& parameter = this->parameter(group, piece.parameter);
    const Json* const key = value->find(kTensor);
    if (key != nullptr && lies_as(key->string("a key"), parameter)) {
      reader_.read_into(key->string(), piece.offset, into);
    } else {
      into.copy_(part_of(whole(*value), parameter, piece));
    }
    return true;
  }

  /// Compares what copy_part() will read with its checksums.
  void check_part(size_t group, const Piece& piece, const std::string& name) const {
    const Json* const value = find(group, piece.parameter, name);
    const Json* const key = value == nullptr ? nullptr : value->find(kTensor);
    if (key == nullptr) return;
    if (lies_as(key->string("a key"), parameter(group, piece.parameter))) {
      reader_.check(key->string(), piece.offset, piece.elements);
    } else {
      reader_.check(key->string(), /*rank=*/0, /*world_size=*/1);
    }
  }

  /// Puts a whole tensor of a state into one of its shape.
  void copy_whole(size_t group, size_t parameter, const std::string& name,
                  const at::Tensor& into) const {
    const Json* const value = find(group, parameter, name);
    const Json* const key = value->find(kTensor);
    if (key != nullptr) {
      reader_.read_into(key->string("a key"), into);
    } else {
      into.copy_(whole(*value));
    }
  }

  /// Compares this rank's share of what all ranks will read whole.
  void check_whole(size_t group, size_t parameter, Ranks ranks) const {
    const Json* const state = this->state(group, parameter);
    if (state == nullptr) return;
    for (const auto& [name, value] : state->object()) {
      const Json* const key = value.is_object() ? value.find(kTensor) : nullptr;
      if (key != nullptr) reader_.check(key->string("a key"), ranks.rank, ranks.world_size);
    }
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
  /// In its shape.
  at::Tensor whole(const Json& value) const {
    return tensor_of(value, [this](const std::string& key) { return reader_.read(key); });
  }

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
    const Json* const key = value.is_object() ? value.find(kTensor) : nullptr;
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
                " has both now, and has only one set of hyperparameters",
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

/// Of an unsharded optimizer: the whole state of a parameter; null if there is none.
std::unique_ptr<torch::optim::OptimizerParamState> whole_state(const at::Tensor& parameter,
                                                               const StateFormat& format,
                                                               const StatesInCheckpoint& saved,
                                                               size_t group, size_t index) {
  const SavedStates::Outline outline = saved.outline(group, index);
  if (!outline.exists) return nullptr;
  auto state = format.make_state();
  const StateFields fields = format.fields(*state);
  if (fields.step != nullptr) *fields.step = outline.step;
  for (const auto& [name, tensor] : fields.tensors) {
    const auto dtype = saved.dtype(group, index, name);
    if (!dtype) continue;
    *tensor = at::empty_strided(parameter.sizes(), saved_strides(parameter),
                                parameter.options().dtype(*dtype));
    saved.copy_whole(group, index, name, *tensor);
  }
  return state;
}

/// Compares what this rank will read of them with its checksums.
void check_pieces(ZeroRedundancyOptimizer& optimizer, const StatesInCheckpoint& saved) {
  const StateFormat& format = optimizer.state_format();
  std::vector<std::string> names{kMasterParameter};
  for (const auto& field : format.fields(*format.make_state()).tensors)
    names.push_back(field.first);
  if (!optimizer.engine().master_weights().keep) names.erase(names.begin());
  for (size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    for (const Piece& piece : optimizer.engine().pieces(group)) {
      for (const std::string& name : names) saved.check_part(group, piece, name);
    }
  }
}

/// Calls `use(group, index, parameter)`.
template <typename Use>
void for_each_parameter(torch::optim::Optimizer& optimizer, const Use& use) {
  for (size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    const auto& parameters = optimizer.param_groups()[group].params();
    for (size_t i = 0; i < parameters.size(); ++i) use(group, i, parameters[i]);
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
                                     Ranks ranks, const Json& saved) {
  const std::string own = class_name_of(optimizer.defaults());
  const std::string& other = saved.at("class").string("a class");
  if (own != other) {
    throw other_optimizer("the state of an optimizer " + other, "the one to load into is " + own,
                          "make the optimizer of the class that was saved.");
  }
  Names names = names_by_group(optimizer, known);
  auto options = std::make_shared<std::vector<std::unique_ptr<torch::optim::OptimizerOptions>>>(
      fitting_options(optimizer, names, saved));
  const auto states =
      std::make_shared<StatesInCheckpoint>(optimizer, std::move(names), saved, reader);
  states->check(*options);
  const auto take_options = [&optimizer, options] {
    for (size_t group = 0; group < options->size(); ++group) {
      optimizer.param_groups()[group].set_options(std::move((*options)[group]));
    }
  };
  if (auto* const sharded = dynamic_cast<ZeroRedundancyOptimizer*>(&optimizer)) {
    check_pieces(*sharded, *states);
    return [=] {
      take_options();
      sharded->take_states(*states);
    };
  }
  for_each_parameter(optimizer, [&](size_t group, size_t index, const at::Tensor&) {
    states->check_whole(group, index, ranks);
  });
  const StateFormat& format = *state_format_of(optimizer.defaults());
  return [&optimizer, &format, take_options, states] {
    take_options();
    auto& present = optimizer.state();
    for_each_parameter(optimizer, [&](size_t group, size_t index, const at::Tensor& parameter) {
      void* const key = parameter.unsafeGetTensorImpl();
      const auto found = present.find(key);
      if (auto state = whole_state(parameter, format, *states, group, index)) {
        present[key] = std::move(state);
      } else if (found != present.end() && found->second && !is_initial(*found->second)) {
        present.erase(found);
      }
    });
  };
}

}  // namespace farandole::checkpoint
