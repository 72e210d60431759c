// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>

#include "support/simulated_nccl/communicator.h"

namespace farandole::sim::nccl {

/// What ncclMemAlloc has given, and what is registered with communicators. Wrong calls throw
/// Misuse.
///
/// Threads: any.
class Memory {
 public:
  /// For any stream of the device.
  void* allocate(int device, size_t bytes);
  void release(void* data);

  /// Returns a handle.
  void* add(const void* data, const Communicator& communicator, bool is_window);
  void remove(void* handle, const Communicator& communicator, bool is_window);
  /// Removes what is registered with a communicator that ends.
  void remove_all(const Communicator& communicator);

 private:
  struct Registration {
    const void* data;
    const Communicator* communicator;
    bool is_window;
  };

  std::mutex mutex_;
  // All below: guarded by mutex_.
  std::set<const void*> allocated_;
  std::map<void*, Registration> registrations_;  ///< by handle
  uintptr_t last_handle_ = 0;
};

/// That of this process.
Memory& memory();

}  // namespace farandole::sim::nccl
