// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/format/json.h"
#include "checkpoint/training/parameter_names.h"
#include "farandole/checkpoint/checkpoint_reader.h"
#include "farandole/checkpoint/slice_list.h"

namespace farandole::checkpoint {

// The state of an optimizer, sharded or not: a tensor "<parameter>/<name>" for what has the shape
// of the parameter, and the rest as JSON. So it does not depend on who has had it.

/// Adds the slices of this rank, and returns the JSON of the rest. `prefix`: of its keys.
/// Collective if the optimizer is sharded.
Json save_optimizer(torch::optim::Optimizer& optimizer, const std::string& prefix,
                    const ParameterNames& known, SliceList& slices);

/// Those that load together.
struct Ranks {
  int rank;
  int world_size;
};

/// Compares what this rank will read with its checksums. `saved`, `reader`: live until the returned
/// function, which reads it and takes it over, has run. Throws CheckpointError if it does not fit.
/// Local; the function too, unless frozen parameters of a sharded optimizer have a state.
std::function<void()> load_optimizer(torch::optim::Optimizer& optimizer,
                                     const ParameterNames& known, const CheckpointReader& reader,
                                     Ranks ranks, const Json& saved);

}  // namespace farandole::checkpoint
