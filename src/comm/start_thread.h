// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "comm/shm/system/system_call.h"
#include "signals_blocked.h"

namespace farandole::comm {

/// Throws SystemError: a thread that is for `purpose` cannot start.
[[noreturn]] inline void throw_no_thread(const std::string& purpose, const std::system_error& met) {
  shm::throw_errno("starting a thread for " + purpose,
                   "raise the limit of processes (ulimit -u, or the cgroup's pids.max).",
                   met.code().value());
}

/// Starts a thread of the library. All of them are started here. Signals of the process do not
/// reach it. `name` (at most 15 characters) is what top and gdb show, `purpose` what the thread is
/// for. Throws SystemError if it cannot start: whoever notes that a thread runs does so afterwards.
template <class Body>
std::thread start_thread(const char* name, const std::string& purpose, Body body) {
  const SignalsBlocked blocked;
  try {
    std::thread started(std::move(body));
    ::pthread_setname_np(started.native_handle(), name);
    return started;
  } catch (const std::system_error& error) {
    throw_no_thread(purpose, error);
  }
}

}  // namespace farandole::comm
