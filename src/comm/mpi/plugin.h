// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "comm/byte_stream.h"
#include "comm/shm/bootstrap/bootstrap.h"
#include "farandole/comm/backends.h"
#include "farandole/comm/communicator.h"

namespace farandole::comm::mpi {

/// What the plug-in libfarandole_mpi.so, which alone is linked to MPI, gives to farandole_comm.
struct Plugin {
  const char* version;  ///< of the Farandole that it was built with
  std::unique_ptr<Communicator> (*make)(Store& store, const CommunicatorOptions& options);
  /// Collective over the ranks of `topology`; see open_mpi_streams().
  std::shared_ptr<StreamSource> (*open_streams)(Store& store, shm::Bootstrap& bootstrap,
                                                const Topology& topology);
};

/// The one symbol that the plug-in exports, an extern "C" function that returns const Plugin*.
constexpr const char* kPluginSymbol = "farandole_mpi_plugin";

}  // namespace farandole::comm::mpi
