// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

// What tests ask of the simulated NCCL, beside the functions of nccl.h. They get these functions by
// dlsym, too.
extern "C" {

enum ncclSimulatedFault {
  /// The call returns `result` and does nothing else.
  ncclSimulatedReturn,
  /// An init, split or shrink: this rank never comes.
  ncclSimulatedAbsence,
  /// The kernel of the call hangs until the communicator is aborted.
  ncclSimulatedHang,
  /// The same, and `result` becomes the communicator's asynchronous error.
  ncclSimulatedAsyncError,
  /// The process gets SIGKILL when the kernel of the call starts.
  ncclSimulatedDeath,
};

/// A failure of one call. Kernels are those of collectives, sends and receives.
struct ncclSimulatedInjection {
  const char* function;  ///< such as "ncclAllReduce"; a literal
  /// Who calls, in its communicator; for functions without one, the current device. -1: whoever
  /// does first.
  int rank;
  int calls_before;  ///< how many such calls pass before
  ncclSimulatedFault fault;
  ncclResult_t result;
};

/// Applies to calls of this process. Any thread.
void ncclSimulatedInject(const ncclSimulatedInjection* injection);

/// Drops all injections whose call has not come yet. Any thread.
void ncclSimulatedDropInjections();

/// The misuses found since the last call of this function, each with its ranks, the reason and the
/// fix; "" if there were none. The text lives until this thread asks again.
const char* ncclSimulatedTakeReports();
}
