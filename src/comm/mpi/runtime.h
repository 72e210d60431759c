// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <string>

namespace farandole::comm::mpi {

/// MPI in this process: initialized by the first group that needs it, unless the program (mpi4py)
/// has done so, and finalized at exit by whoever initialized it.
///
/// OpenMPI's TCP transport moves data in one direction at a time by default, so
/// OMPI_MCA_btl_tcp_flags=1 is set before MPI_Init_thread() where it is not set yet.
///
/// Finalizing waits for the other processes of the job, as MPI_Finalize() does. It is left out once
/// the end of a peer is known: then mpirun ends the job.
///
/// Threads: any.
class Runtime {
 public:
  /// Initializes MPI with MPI_THREAD_MULTIPLE at the first call. Throws NotSupported if MPI gives
  /// less, or if it is finalized already.
  static Runtime& get();

  int rank() const { return rank_; }  ///< in MPI_COMM_WORLD
  int size() const { return size_; }  ///< of MPI_COMM_WORLD
  int most_tag() const { return most_tag_; }
  /// Which job this is, if its launcher tells.
  const std::string& job() const { return job_; }

  /// Whether MPI may not be called any more.
  static bool is_over();
  /// Has `stop` called before MPI is finalized, by whomever.
  static void before_end(void (*stop)());
  /// MPI_Finalize() would wait for a process that has ended: leave it out.
  static void leave_out_finalize();
  /// Whether that was called, or MPI itself knows that a process of the job has ended.
  static bool has_lost_a_process();

 private:
  Runtime();

  int rank_ = 0;
  int size_ = 0;
  int most_tag_ = 32767;
  std::string job_;
};

}  // namespace farandole::comm::mpi
