// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "support/simulated_nccl/communicator.h"
#include "support/simulated_nccl/injection.h"

namespace farandole::sim::nccl {

/// Returns what `body` returns, or the result of what it throws; the text becomes that of
/// ncclGetLastError(), and a misuse is reported.
ncclResult_t guarded(const std::function<ncclResult_t()>& body);

/// The same for a function of a communicator, with what was injected into the call, except for
/// errors to return: then `body` is not called.
using CallBody = std::function<ncclResult_t(Communicator&, const std::optional<Injection>&)>;
ncclResult_t call(const char* function, ncclComm_t handle, const CallBody& body);

/// Of the last call in this thread that failed; "" if none has.
const std::string& last_error();

}  // namespace farandole::sim::nccl
