// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "farandole/comm/backends.h"
#include "farandole/export.h"

namespace farandole::comm {

/// A communicator of the plug-in libfarandole_cuda.so. Throws NotSupported if it is not there, if
/// it belongs to another version of Farandole or if no NCCL is found, and what make_communicator()
/// throws.
std::unique_ptr<Communicator> make_nccl_communicator(Store& store,
                                                     const CommunicatorOptions& options);

/// Why this process cannot use NCCL, a sentence; empty if it can. Loads the plug-in and NCCL.
std::string obstacle_to_nccl(const Config& config);

/// Throws NotSupported: NCCL cannot be used here because of `why`, a sentence.
[[noreturn]] FARANDOLE_API void refuse_nccl(const std::string& why);

}  // namespace farandole::comm
