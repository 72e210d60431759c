// SPDX-License-Identifier: Apache-2.0
#include "ddp/freed_memory.h"

#include <malloc.h>

#include <mutex>

namespace farandole {
namespace {

constexpr size_t kMostBytes = 32 << 20;

}  // namespace

// Under another malloc the first call of glibc's sets that one up.
void give_back_memory() {
#ifdef __GLIBC__
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  ::malloc_trim(0);
#endif
}

void FreedMemory::add(size_t bytes) {
  bytes_ += bytes;
  if (!gives_back_ || bytes_ < kMostBytes) return;
  give_back_memory();
  bytes_ = 0;
}

}  // namespace farandole
