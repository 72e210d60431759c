// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstring>
#include <string>

#include "farandole/error.h"

namespace farandole::comm::shm {

/// What helps against an error wherever it comes from; else what helps against that of the call.
inline std::string fix_for(int error_number, const std::string& fix_of_call) {
  if (error_number == EMFILE) return "raise the limit of open files (ulimit -n).";
  if (error_number == ENFILE) return "raise the host's limit of open files (sysctl fs.file-max).";
  if (error_number == EFBIG) return "raise the limit on the size of files (ulimit -f).";
  return fix_of_call;
}

/// Calls until no signal interrupts it (EINTR).
template <class Function>
auto retried(const Function& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

/// The one place where a failed system call becomes an error. `call` names it, `fix` says what the
/// user can do.
[[noreturn]] inline void throw_errno(const std::string& call, const std::string& fix,
                                     int error_number = errno) {
  throw SystemError(
      "system-call", call + " failed.",
      std::string(std::strerror(error_number)) + " (errno " + std::to_string(error_number) + ").",
      fix_for(error_number, fix));
}

}  // namespace farandole::comm::shm
