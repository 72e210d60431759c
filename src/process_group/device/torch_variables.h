// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace farandole {

// The variables TORCH_NCCL_... of torch's own NCCL backend, which users of accelerators may have
// set. Most name what this backend always or never does. All functions: any thread.

/// TORCH_NCCL_BLOCKING_WAIT: whether wait() makes the host wait, too.
bool waits_on_host();
/// Logs once in a process what the variables that are set would mean, where they change nothing.
void warn_of_torch_variables();

}  // namespace farandole
