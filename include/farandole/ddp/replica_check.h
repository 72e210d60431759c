// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "farandole/ddp/replica_group.h"
#include "farandole/export.h"

namespace farandole {

/// A parameter or buffer by its name in the module.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Throws InvalidArgument on every rank unless all have parameters and buffers of the same names,
/// shapes, dtypes and requires_grad, in the same order; the text names the first differences.
/// Collective; sends 8 bytes where all agree.
FARANDOLE_API void check_same_replicas(const NamedTensors& parameters, const NamedTensors& buffers,
                                       const ReplicaGroup& group);

}  // namespace farandole
