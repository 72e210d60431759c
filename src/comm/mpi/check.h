// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <string>

namespace farandole::comm::mpi {

/// The one place where the return code of an MPI call becomes an error: throws CommError with MPI's
/// own text unless `code` is MPI_SUCCESS. `call` names it: "MPI_Allreduce".
void check(int code, const char* call);

/// MPI's own text for `code`.
std::string text_of(int code);

/// Whether `code` says that a process has ended, or that the communicator was revoked for that.
/// Only an MPI with fault tolerance (ULFM) returns such codes; others end the job.
bool is_process_failure(int code);

/// The rank in `communicator` of a process that MPI knows to have ended; -1: none. Only OpenMPI is
/// asked: that of MPICH ends the program.
int failed_process(MPI_Comm communicator);

}  // namespace farandole::comm::mpi
