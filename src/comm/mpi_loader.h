// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "comm/mpi/plugin.h"
#include "farandole/export.h"

namespace farandole::comm {

/// Opens the MPI plug-in at `path`; it stays open until the process ends. Throws NotSupported if it
/// is not there, if no libmpi is found for it, or if it belongs to another version of Farandole.
/// Threads: any.
FARANDOLE_API const mpi::Plugin& load_mpi_plugin(const std::string& path);

/// Where the plug-in lies: beside this library.
FARANDOLE_API std::string path_of_mpi_plugin();

/// A communicator of the plug-in. Throws what load_mpi_plugin() and make_communicator() throw.
std::unique_ptr<Communicator> make_mpi_communicator(Store& store,
                                                    const CommunicatorOptions& options);

/// Streams of the plug-in between any two ranks of `topology`, processes of one MPI job.
/// Collective; a rank that gives up tells the others through `bootstrap`. Throws what
/// load_mpi_plugin() and make_communicator() throw.
std::shared_ptr<StreamSource> open_mpi_streams(Store& store, shm::Bootstrap& bootstrap,
                                               const Topology& topology);

}  // namespace farandole::comm
