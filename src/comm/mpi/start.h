// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

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

/// Ranks meet in the store, tell each other their numbers in MPI_COMM_WORLD, and make an MPI
/// communicator of these processes. Nobody calls MPI collectively before rank 0 has seen that all
/// can. Collective. Throws what make_communicator() lists, and NotSupported on every rank if they
/// are not processes of one MPI_COMM_WORLD.
Start meet(Store& store, const CommunicatorOptions& options);

}  // namespace farandole::comm::mpi
