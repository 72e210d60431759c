// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "checkpoint/format/json.h"
#include "farandole/amp/grad_scaler.h"
#include "farandole/data/epoch_share.h"
#include "farandole/optim/lr_scheduler/scheduler_fields.h"

namespace farandole::checkpoint {

// States of schedulers, scalers and samplers as JSON, as state_dict() of their classes in Python
// has them. What reads them throws JsonError.

/// Parts of a SequentialLR, "_schedulers.0.gamma", are objects in a list.
Json json_of(const LRSchedulerState& state);
/// Those of Python have more names than that of C++ in `present`, whose names it has.
LRSchedulerState scheduler_state_of(const Json& json, const LRSchedulerState& present);

/// One that is not enabled has none.
Json json_of(const GradScaler& scaler);
/// Throws CheckpointError also if it is that of one that was not, and `present` is enabled.
GradScalerState scaler_state_of(const Json& json, const GradScaler& present);

Json json_of(const SamplerState& state);
SamplerState sampler_state_of(const Json& json);

}  // namespace farandole::checkpoint
