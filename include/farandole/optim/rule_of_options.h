// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include <memory>

#include "farandole/export.h"
#include "farandole/optim/update_rule.h"

namespace farandole {

using SGDOptions = torch::optim::SGDOptions;
using AdamOptions = torch::optim::AdamOptions;
using AdamWOptions = torch::optim::AdamWOptions;

/// The rule of these options; null unless they are SGDOptions, AdamOptions, AdamWOptions,
/// LambOptions or LarsOptions. Throws InvalidArgument for a hyperparameter that the rule refuses.
FARANDOLE_API std::shared_ptr<const UpdateRule> update_rule_of(
    const torch::optim::OptimizerOptions& options);

}  // namespace farandole
