// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/update_parameters.h"

#include <string>

#include "farandole/error.h"
#include "optim/step/parameter_arrays.h"
#include "optim/step/step_pass.h"
#include "process_group/data_type.h"

namespace farandole {
namespace {

void check_lengths(size_t parameters, size_t gradients, size_t states, size_t steps) {
  if (gradients == parameters && states == parameters && steps == parameters) return;
  throw InvalidArgument("update-list-lengths",
                        "update_parameters got " + std::to_string(parameters) + " parameters, " +
                            std::to_string(gradients) + " gradients, " + std::to_string(states) +
                            " lists of states and " + std::to_string(steps) + " steps.",
                        "every parameter needs one of each.", "pass lists of equal lengths.");
}

void check_step(int64_t step) {
  if (step >= 1) return;
  throw InvalidArgument("update-step-number",
                        "update_parameters got step " + std::to_string(step) + ".",
                        "steps count from 1.", "pass the number of the current step.");
}

/// A whole parameter of one process: its gradient is read in place, and there are no peers.
StepPiece piece_of(const UpdateRule& rule, const ParameterArrays& arrays, int64_t step) {
  static const std::vector<GradientChange> unchanged;
  StepPiece piece{};
  piece.dtype = *data_type_of(arrays.type);
  piece.elements = arrays.elements;
  piece.gradient = {piece.dtype, &arrays.gradient, 1, 1, &unchanged};
  piece.parameter = static_cast<std::byte*>(arrays.parameter);
  piece.states = arrays.states.data();
  piece.state_count = arrays.states.size();
  piece.rule = &rule;
  piece.context = {step, step == 1, nullptr};
  return piece;
}

void update(const UpdateRule& rule, std::vector<StepPiece> pieces) {
  StepPass pass;
  const auto count = static_cast<size_t>(rule.sums());
  std::vector<double> sums(pieces.size() * count);
  if (count != 0) {
    for (size_t i = 0; i < pieces.size(); ++i) pieces[i].sums = &sums[i * count];
    pass.measure(pieces);
    for (StepPiece& piece : pieces) piece.context.sums = piece.sums;
  }
  pass.update(pieces);
}

}  // namespace

void update_parameters(const UpdateRule& rule, const std::vector<at::Tensor>& parameters,
                       const std::vector<at::Tensor>& gradients,
                       const std::vector<std::vector<at::Tensor>>& states,
                       const std::vector<int64_t>& steps) {
  check_lengths(parameters.size(), gradients.size(), states.size(), steps.size());
  const std::vector<std::string> names = rule.state_names();
  for (size_t i = 0; i < parameters.size(); ++i) {
    check_step(steps[i]);
    check_update(parameters[i], gradients[i], states[i], names);
  }
  std::vector<ParameterArrays> arrays;
  for (size_t i = 0; i < parameters.size(); ++i) {
    arrays.push_back(arrays_of(parameters[i], gradients[i], states[i]));
  }
  std::vector<StepPiece> pieces;
  for (size_t i = 0; i < arrays.size(); ++i) pieces.push_back(piece_of(rule, arrays[i], steps[i]));
  update(rule, std::move(pieces));
  for (size_t i = 0; i < parameters.size(); ++i) store_arrays(arrays[i], parameters[i], states[i]);
}

}  // namespace farandole
