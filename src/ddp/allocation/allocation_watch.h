// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <memory>

#include "farandole/export.h"

namespace farandole {

/// Sees the allocations of host memory that torch makes for tensors on one thread, and may serve
/// them with lent memory (ddp/allocation/lent_memory.h).
///
/// Threads: called on the watched thread, which may be within a call of Farandole.
class FARANDOLE_API AllocationWatch {
 public:
  virtual ~AllocationWatch();
  /// Memory for a tensor of `bytes`; none: torch's own allocator serves it.
  virtual at::DataPtr serve(size_t bytes) = 0;
  /// What torch's allocator gave instead.
  virtual void on_served(const void* data, size_t bytes) = 0;
};

/// Puts an allocator before the one that torch has for the CPU, for good; the first call does it.
/// A process that never calls this keeps torch's allocator. On threads that nobody watches it costs
/// a look at a variable of the thread.
///
/// Threads: any, also while others allocate. torch reads its pointer to the allocator without a
/// lock: they find the one before or this one, and memory of either may be freed by both.
FARANDOLE_API void enable_allocation_watch();

/// Lets `watch` see what this thread allocates from now on, in place of the one before; null: none.
/// A watch that is gone sees nothing. Without enable_allocation_watch() it sees nothing either.
FARANDOLE_API void watch_allocations(const std::shared_ptr<AllocationWatch>& watch);

}  // namespace farandole
