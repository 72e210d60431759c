// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <mutex>

namespace farandole::comm {

/// The mutex of this process for what `Guarded` stands for. fork() waits until it is free and hands
/// it to the child free, with what it guards whole: a child that releases memory of a group, or
/// makes one of its own, never waits for a thread that it does not have.
///
/// fork() takes all mutexes of this kind, in any order, so nobody may hold two of them.
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
