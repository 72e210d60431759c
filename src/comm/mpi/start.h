// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include "comm/shm/bootstrap/bootstrap.h"
#include "comm/shm/bootstrap/liveness.h"
#include "farandole/comm/backends.h"
#include "farandole/comm/store.h"
#include "farandole/comm/topology.h"

namespace farandole::comm::mpi {

/// What a group begins with.
struct Start {
  Topology topology;
  shm::Liveness liveness;  ///< of the ranks of this host
  MPI_Comm communicator;   ///< of the ranks in their order; never freed
};

/// Ranks meet in the store, and join_communicator() is called. Collective. Throws what
/// make_communicator() lists.
Start meet(Store& store, const CommunicatorOptions& options);

/// By which setting a group asks for MPI.
struct Setting {
  const char* variable;
  const char* use;  ///< what it asks for, for texts: "use backend 'mpi'"
};

/// Ranks tell each other their numbers in MPI_COMM_WORLD and make an MPI communicator of these
/// processes, in the order of `topology`; it is never freed. Nobody calls MPI collectively before
/// rank 0 has seen that all can. Collective; tells the others why this rank gives up. Throws what
/// make_communicator() lists, and NotSupported on every rank if they are not processes of one
/// MPI_COMM_WORLD.
MPI_Comm join_communicator(Store& store, shm::Bootstrap& bootstrap, const Topology& topology,
                           const Setting& setting);

}  // namespace farandole::comm::mpi
