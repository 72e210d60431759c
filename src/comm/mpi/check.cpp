// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/check.h"

#include <mpi.h>
#if defined(OPEN_MPI)
#include <mpi-ext.h>
#endif

#include <array>

#include "farandole/error.h"

namespace farandole::comm::mpi {

std::string text_of(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) {
    return "error " + std::to_string(code);
  }
  return {text.data(), static_cast<size_t>(length)};
}

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  throw CommError("mpi-call", std::string(call) + " failed.", text_of(code) + ".",
                  "look at MPI's own messages above, and at the parameters of its transports.");
}

bool is_process_failure(int code) {
  int kind = MPI_SUCCESS;
  if (code == MPI_SUCCESS || MPI_Error_class(code, &kind) != MPI_SUCCESS) return false;
#if defined(MPIX_ERR_PROC_FAILED) && defined(MPIX_ERR_REVOKED)
  return kind == MPIX_ERR_PROC_FAILED || kind == MPIX_ERR_REVOKED;
#else
  return false;
#endif
}

int failed_process([[maybe_unused]] MPI_Comm communicator) {
  int first = MPI_UNDEFINED;
#if defined(OPEN_MPI) && defined(MPIX_ERR_PROC_FAILED)
  MPI_Group failed = MPI_GROUP_NULL;
  MPI_Group all = MPI_GROUP_NULL;
  if (MPIX_Comm_failure_ack(communicator) != MPI_SUCCESS ||
      MPIX_Comm_failure_get_acked(communicator, &failed) != MPI_SUCCESS) {
    return -1;
  }
  int size = 0;
  MPI_Group_size(failed, &size);
  if (size > 0 && MPI_Comm_group(communicator, &all) == MPI_SUCCESS) {
    const int zero = 0;
    MPI_Group_translate_ranks(failed, 1, &zero, all, &first);
    MPI_Group_free(&all);
  }
  MPI_Group_free(&failed);
#endif
  return first == MPI_UNDEFINED ? -1 : first;
}

}  // namespace farandole::comm::mpi
