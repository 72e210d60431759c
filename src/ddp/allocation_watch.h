// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <memory>

namespace farandole {

/// Sees the allocations of host memory that torch makes for tensors on one thread, and may serve
/// them.
///
/// Threads: called on the watched thread, which may be within a call of Farandole.
class AllocationWatch {
 public:
  virtual ~AllocationWatch();
  /// Memory for a tensor of `bytes`; none: torch's own allocator serves it.
  virtual at::DataPtr serve(size_t bytes) = 0;
  /// What torch's allocator gave instead.
  virtual void on_served(const void* data, size_t bytes) = 0;
};

/// Lets `watch` see what this thread allocates from now on, in place of the one before; null: none.
/// A watch that is gone sees nothing.
///
/// The library, when it is loaded, puts an allocator before the one that torch has for the CPU, for
/// good: elsewhere it costs a look at a variable of the thread.
void watch_allocations(const std::shared_ptr<AllocationWatch>& watch);

}  // namespace farandole
