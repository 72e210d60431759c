// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstring>
#include <string>

#include "farandole/error.h"

namespace farandole::comm::shm {

/// The one place where a failed system call becomes an error. `call` names it, `fix` says what the
/// user can do.
[[noreturn]] inline void throw_errno(const std::string& call, const std::string& fix,
                                     int error_number = errno) {
  throw SystemError(
      call + " failed.",
      std::string(std::strerror(error_number)) + " (errno " + std::to_string(error_number) + ").",
      fix);
}

}  // namespace farandole::comm::shm
