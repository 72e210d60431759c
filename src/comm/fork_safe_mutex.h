// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <mutex>

namespace farandole::comm {

/// The mutex of this process for what `Guarded` names. fork() waits until it is free, so a child
/// gets it free and what it guards consistent. A child that releases memory of a group, or makes a
/// group of its own, never waits for a thread that does not exist there.
///
/// fork() locks all mutexes of this kind, in any order, so no thread may hold two of them.
/// Never destroyed. Threads: any.
template <class Guarded>
std::mutex& fork_safe_mutex() {
  static auto* const mutex = new std::mutex;
  static const int registered =
      ::pthread_atfork([] { mutex->lock(); }, [] { mutex->unlock(); }, [] { mutex->unlock(); });
  static_cast<void>(registered);
  return *mutex;
}

}  // namespace farandole::comm
