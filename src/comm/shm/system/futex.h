// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace farandole::comm::shm {

/// Sleeps while `word` holds `expected`, at most `timeout`. The system call itself, for words in
/// shared memory: libstdc++'s atomic wait never wakes another process.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t expected,
                       std::chrono::microseconds timeout) {
  timespec limit{};
  limit.tv_sec = static_cast<time_t>(timeout.count() / 1'000'000);
  limit.tv_nsec = static_cast<long>(timeout.count() % 1'000'000 * 1000);
  ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &limit, nullptr, 0);
}

/// Wakes everyone who sleeps on `word`, in every process.
inline void futex_wake_all(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace farandole::comm::shm
