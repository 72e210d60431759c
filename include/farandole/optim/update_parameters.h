// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "farandole/export.h"
#include "farandole/optim/update_rule.h"

namespace farandole {

/// One step of `rule` in one process: changes parameters and states in place.
///
/// parameters: on the CPU, dense (in any order of dimensions), of float32, float64, float16,
/// bfloat16 or complex (pairs of reals, as torch.optim sees them).
/// gradients: one each, of the same shape and dtype; copied first if they lie otherwise in memory.
/// states: lists of tensors in the order of rule.state_names(), of the parameter's shape and dtype;
/// of float32 beside half types, which are computed in float32. All zeros before step 1.
/// steps: of each parameter, counted from 1.
///
/// Blocks of parameters run on torch's threads; their number changes no bit.
/// Throws InvalidArgument, or NotSupported for sparse tensors and other devices, before anything is
/// changed. Threads: any, if no two calls share a tensor.
FARANDOLE_API void update_parameters(const UpdateRule& rule,
                                     const std::vector<at::Tensor>& parameters,
                                     const std::vector<at::Tensor>& gradients,
                                     const std::vector<std::vector<at::Tensor>>& states,
                                     const std::vector<int64_t>& steps);

}  // namespace farandole
