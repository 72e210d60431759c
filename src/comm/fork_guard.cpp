// SPDX-License-Identifier: Apache-2.0
#include "comm/fork_guard.h"

#include <pthread.h>

#include <atomic>

namespace farandole::comm {
namespace {

std::atomic<uint64_t> fork_generation{0};

void count_fork_in_child() { fork_generation.fetch_add(1, std::memory_order_relaxed); }

uint64_t current_generation() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, count_fork_in_child);
  static_cast<void>(registered);
  return fork_generation.load(std::memory_order_relaxed);
}

}  // namespace

ForkGuard::ForkGuard() : generation_(current_generation()) {}

bool ForkGuard::in_creator() const {
  return fork_generation.load(std::memory_order_relaxed) == generation_;
}

}  // namespace farandole::comm
