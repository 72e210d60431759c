// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "farandole/comm/backends.h"
#include "farandole/comm/communicator.h"

namespace farandole::comm::nccl {

/// What the plug-in libfarandole_cuda.so, which alone knows CUDA and NCCL, gives to farandole_comm.
struct Plugin {
  const char* version;  ///< of the Farandole that it was built with
  std::unique_ptr<Communicator> (*make)(Store& store, const CommunicatorOptions& options);
  /// Finds the NCCL of this process, as FARANDOLE_NCCL_LIBRARY names it. Throws NotSupported if
  /// there is none that fits, InvalidArgument for another library than the first.
  void (*find)(const std::string& library);
};

/// The symbol that the plug-in exports for it, an extern "C" function that returns const Plugin*.
constexpr const char* kPluginSymbol = "farandole_cuda_plugin";

}  // namespace farandole::comm::nccl
