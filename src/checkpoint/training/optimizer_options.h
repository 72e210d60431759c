// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <string>

#include "checkpoint/format/json.h"

namespace farandole::checkpoint {

// Hyperparameters of SGD, Adam, AdamW, RMSprop, Adagrad, LAMB and LARS as JSON, by the names that
// they have in Python.

/// Throws the NotSupported for an optimizer of another class.
[[noreturn]] void throw_unknown_class();

/// What Python calls the class of the optimizer: "AdamW". Throws NotSupported for others.
std::string class_name_of(const torch::optim::OptimizerOptions& options);

Json json_of(const torch::optim::OptimizerOptions& options);

/// A copy of `present` with what was saved. Names that only Python has, as "foreach", are passed
/// over. Throws JsonError, and CheckpointError for one that changes the step ("maximize").
std::unique_ptr<torch::optim::OptimizerOptions> options_of(
    const Json& saved, const torch::optim::OptimizerOptions& present);

}  // namespace farandole::checkpoint
