// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <atomic>
#include <functional>
#include <string>

namespace farandole::comm::mpi {

/// MPI in this process: initialized by the first group that needs it, unless the program (mpi4py)
/// has done so, and finalized at exit by whoever initialized it.
///
/// OpenMPI's TCP transport moves data in one direction at a time by default, so
/// OMPI_MCA_btl_tcp_flags=1 is set before MPI_Init_thread() where it is not set yet.
///
/// Finalizing waits for the other processes of the job, as MPI_Finalize() does. It is left out
/// where the end of one is known, or a call to MPI has not returned: then mpirun ends the job.
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
  /// Has `leave` called before MPI is finalized, by whomever; null: no more. Does not return while
  /// that of `owner` is called.
  static void before_end(const void* owner, std::function<void()> leave);
  /// Has `stop` called after that, before MPI is finalized. `delivers`: MPI is not going to be, so
  /// what was sent has to be delivered first.
  static void stop_at_end(void (*stop)(bool delivers));
  /// A process of the job has ended.
  static void note_an_end();
  /// A process of the job seems to have ended; MPI knows better, perhaps in a moment.
  static void suspect_an_end();
  /// Whether a process of the job has ended. Waits for MPI to know what is suspected.
  static bool has_lost_a_process();
  /// Calls to MPI that nobody waits for any more, and that may never return.
  static std::atomic<int>& calls_under_way();

 private:
  Runtime();

  int rank_ = 0;
  int size_ = 0;
  int most_tag_ = 32767;
  std::string job_;
};

}  // namespace farandole::comm::mpi
