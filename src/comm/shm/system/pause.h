// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace farandole::comm::shm {

/// Tells the core that its caller spins.
inline void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace farandole::comm::shm
