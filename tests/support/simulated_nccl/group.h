// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include "support/simulated_nccl/communicator.h"

namespace farandole::sim::nccl {

// Groups of the calling thread, as ncclGroupStart() and ncclGroupEnd() make them: the operations
// of one communicator become one kernel, which is on all their streams, if no call has failed.

void start_group();
/// Launches at the end of the outermost group.
ncclResult_t end_group();
/// Adds an operation to the group, or launches it if there is none.
ncclResult_t submit(ncclComm_t handle, Communicator& communicator, const Operation& operation);
/// The end of the group will return this, unless it is no failure.
ncclResult_t note_in_group(ncclResult_t result);
/// Throws Misuse in a group.
void check_outside_group(const char* function);

}  // namespace farandole::sim::nccl
