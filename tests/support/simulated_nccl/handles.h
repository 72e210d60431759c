// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <memory>
#include <string>

#include "support/simulated_nccl/communicator.h"

namespace farandole::sim::nccl {

// Handles are never used again, so that a call with one whose communicator is gone is noticed. All
// functions may be called by any thread.

ncclComm_t make_handle(std::shared_ptr<Communicator> communicator);
/// The communicator of a handle, for `function`. Throws Misuse if there is none or it is gone.
std::shared_ptr<Communicator> resolve(ncclComm_t handle, const std::string& function);
/// `function` ends the communicator: the handle is of no use any more.
void retire(ncclComm_t handle, const std::string& function);

}  // namespace farandole::sim::nccl
