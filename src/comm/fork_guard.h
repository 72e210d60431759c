// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <thread>
#include <utility>

#include "farandole/export.h"

namespace farandole::comm {

/// Distinguishes a forked child (such as a DataLoader worker) from the process that made a group.
/// The child has no mapping of the memory through which ranks communicate (MADV_DONTFORK), private
/// copies of symmetric memory (private_in_child.h) and none of the threads. It must not communicate
/// as the rank.
///
/// Threads: any.
class FARANDOLE_API ForkGuard {
 public:
  ForkGuard();
  /// Whether this process is the one that made the guard.
  bool in_creator() const;

 private:
  uint64_t generation_;
};

/// In a forked child: keeps the object of a thread of the parent for good. The child has no such
/// thread, so it can neither join nor detach it.
inline void keep_thread_of_parent(std::thread& thread) {
  static_cast<void>(new std::thread(std::move(thread)));
}

}  // namespace farandole::comm
