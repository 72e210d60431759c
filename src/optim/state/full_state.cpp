// SPDX-License-Identifier: Apache-2.0
#include "optim/state/full_state.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <set>

#include "farandole/error.h"
#include "farandole/optim/rule_of_options.h"
#include "optim/shards/shard_tensors.h"

namespace farandole {
namespace {

using Dtypes = std::vector<std::optional<at::ScalarType>>;
using Pieces = std::vector<ShardedOptimizer::Piece>;

/// Gathers whole tensors from pieces, by parameter, with a collective for each dtype in `dtypes`,
/// which is the same on all ranks.
std::vector<at::Tensor> gather(const ShardedOptimizer& engine, size_t group,
                               const std::function<at::Tensor(size_t)>& piece_of,
                               const Dtypes& dtypes, int to) {
  const Pieces pieces = engine.pieces(group);
  std::set<at::ScalarType> present;
  for (const auto& dtype : dtypes) {
    if (dtype) present.insert(*dtype);
  }
  std::vector<at::Tensor> whole(dtypes.size());
  for (const at::ScalarType dtype : present) {
    std::vector<at::Tensor> own;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const at::Tensor piece = dtypes[pieces[i].parameter] == dtype ? piece_of(i) : at::Tensor();
      own.push_back(piece.defined() ? piece : at::zeros({pieces[i].elements}, dtype));
    }
    const std::vector<at::Tensor> gathered = engine.gather(group, own, to);
    for (size_t i = 0; i < gathered.size(); ++i) {
      if (dtypes[i] == dtype) whole[i] = gathered[i];
    }
  }
  return whole;
}

bool is_half(const at::Tensor& parameter) {
  return c10::isReducedFloatingType(parameter.scalar_type());
}

/// The name that messages use.
std::string text_of(size_t group, size_t parameter) {
  return "parameter " + std::to_string(parameter) + " of group " + std::to_string(group);
}

void check_shape(const at::Tensor& state, const std::string& name, const at::Tensor& parameter,
                 const std::string& which) {
  if (!state.defined() || state.sizes() == parameter.sizes()) return;
  throw InvalidArgument("load-shape",
                        "load() got '" + name + "' with " + std::to_string(state.numel()) +
                            " elements for " + which + ".",
                        "that parameter has " + std::to_string(parameter.numel()) +
                            " elements, or its shape differs.",
                        "load the state of the same model, with its parameters in the same order.");
}

/// Throws if a state that counts its steps lacks something that the rule needs to continue.
void check_complete(const StateFields& fields, const UpdateRule* rule, const std::string& which) {
  if (rule == nullptr || fields.step == nullptr) return;
  for (const std::string& needed : rule->state_names()) {
    for (const auto& [name, tensor] : fields.tensors) {
      if (name != needed || tensor->defined()) continue;
      throw InvalidArgument("load-missing-state",
                            "load() got a state of " + which + " without '" + name + "'.",
                            "the options in the archive require it: " + rule->description() + ".",
                            "load the state of an optimizer of the same class and options.");
    }
  }
}

}  // namespace

std::vector<FullState> gather_states(
    const ShardedOptimizer& engine, const StateFormat& format, size_t group,
    const std::vector<StateOutline>& outlines,
    const std::function<at::Tensor(size_t field, size_t piece)>& piece_of, int to) {
  const bool is_receiver = to < 0 || to == engine.shard_rank();
  std::vector<FullState> states(is_receiver ? outlines.size() : 0);
  for (size_t i = 0; i < states.size(); ++i) {
    if (!outlines[i].exists) continue;
    states[i].state = format.make_state();
    if (int64_t* const step = format.fields(*states[i].state).step) *step = outlines[i].step;
  }
  const size_t fields = format.fields(*format.make_state()).tensors.size();
  for (size_t field = 0; field < fields; ++field) {
    Dtypes dtypes;
    for (const StateOutline& outline : outlines) {
      dtypes.push_back(outline.exists ? outline.dtypes[field] : std::nullopt);
    }
    const std::vector<at::Tensor> whole = gather(
        engine, group, [&](size_t piece) { return piece_of(field, piece); }, dtypes, to);
    for (size_t i = 0; i < states.size(); ++i) {
      if (dtypes[i]) *format.fields(*states[i].state).tensors[field].second = whole[i];
    }
  }
  return states;
}

void gather_masters(const ShardedOptimizer& engine, size_t group,
                    const std::vector<at::Tensor>& parameters, std::vector<FullState>& states,
                    int to) {
  const std::vector<int64_t> steps = engine.steps(group);
  Dtypes dtypes(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const bool has_one = engine.master_weights().keep && is_half(parameters[i]);
    if (has_one && steps[i] > 0) dtypes[i] = at::kFloat;
  }
  const std::vector<at::Tensor> masters = masters_of(engine, group, parameters);
  const std::vector<at::Tensor> whole = gather(
      engine, group, [&](size_t piece) { return masters[piece]; }, dtypes, to);
  for (size_t i = 0; i < states.size(); ++i) states[i].master = whole[i];
}

std::vector<at::Tensor> masters_of(const ShardedOptimizer& engine, size_t group,
                                   const std::vector<at::Tensor>& parameters) {
  const std::vector<at::Tensor> present = engine.state(group, kMasterParameter);
  std::vector<at::Tensor> masters;
  size_t next = 0;
  for (const auto& piece : engine.pieces(group)) {
    const bool has_one = is_half(parameters[piece.parameter]) && next < present.size();
    masters.push_back(has_one ? present[next++] : at::Tensor());
  }
  return masters;
}

void load_masters(const ShardedOptimizer& engine, size_t group,
                  const std::vector<at::Tensor>& parameters, const SavedStates& states) {
  const std::vector<at::Tensor> masters = masters_of(engine, group, parameters);
  const Pieces pieces = engine.pieces(group);
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!masters[i].defined()) continue;
    const at::Tensor& parameter = parameters[pieces[i].parameter];
    if (states.copy_part(group, pieces[i], kMasterParameter, masters[i])) continue;
    masters[i].copy_(part_of(parameter, parameter, pieces[i]));
  }
}

SavedStates::Outline WholeStates::outline(size_t group, size_t parameter) const {
  const FullState& whole = states_[group][parameter];
  const int64_t* const step = whole.state ? format_.fields(*whole.state).step : nullptr;
  const int64_t known = !whole.state ? 0 : step == nullptr ? 1 : *step;
  return {whole.state != nullptr, whole.steps.value_or(known), whole.master.defined()};
}

at::Tensor WholeStates::whole(size_t group, size_t parameter, const std::string& name) const {
  const FullState& whole = states_[group][parameter];
  if (name == kMasterParameter) return whole.master;
  if (!whole.state) return {};
  for (const auto& [field, tensor] : format_.fields(*whole.state).tensors) {
    if (field == name) return *tensor;
  }
  return {};
}

std::optional<at::ScalarType> WholeStates::dtype(size_t group, size_t parameter,
                                                 const std::string& name) const {
  const at::Tensor value = whole(group, parameter, name);
  return value.defined() ? std::optional(value.scalar_type()) : std::nullopt;
}

bool WholeStates::copy_part(size_t group, const ShardedOptimizer::Piece& piece,
                            const std::string& name, const at::Tensor& into) const {
  const at::Tensor value = whole(group, piece.parameter, name);
  if (!value.defined()) return false;
  into.copy_(part_of(value, groups_[group].params()[piece.parameter], piece));
  return true;
}

void check_states(const FullStates& states, const StateFormat& format,
                  const StateFormat::Groups& groups) {
  for (size_t i = 0; i < states.size(); ++i) {
    const auto rule = update_rule_of(groups[i].options());
    for (size_t j = 0; j < states[i].size(); ++j) {
      const at::Tensor& parameter = groups[i].params()[j];
      check_shape(states[i][j].master, kMasterParameter, parameter, text_of(i, j));
      if (!states[i][j].state) continue;
      const StateFields fields = format.fields(*states[i][j].state);
      check_complete(fields, rule.get(), text_of(i, j));
      for (const auto& [name, tensor] : fields.tensors) {
        check_shape(*tensor, name, parameter, text_of(i, j));
      }
    }
  }
}

at::Tensor part_of(const at::Tensor& value, const at::Tensor& parameter,
                   const ShardedOptimizer::Piece& piece) {
  at::Tensor alike = value.detach();
  if (parameter.is_contiguous()) {
    alike = alike.contiguous();
  } else {
    alike = at::empty_strided(parameter.sizes(), parameter.strides(), value.options());
    alike.copy_(value.detach());
  }
  return alike.as_strided({value.numel()}, {1}).narrow(0, piece.offset, piece.elements);
}

}  // namespace farandole
