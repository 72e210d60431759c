// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>

#include "comm/fork_guard.h"
#include "comm/nccl/handle.h"
#include "farandole/comm/device_communicator.h"

namespace farandole::comm::nccl {

/// Memory of ncclMemAlloc(), registered as a window of all ranks where NCCL has windows, so that
/// kernels reach that of peers; else registered on this rank.
class RegisteredMemory final : public DeviceMemory {
 public:
  /// Allocates, on the current device. data() is null if there is no memory.
  RegisteredMemory(std::shared_ptr<Handle> handle, size_t bytes);
  ~RegisteredMemory() override;
  /// Collective; all ranks have memory. Throws what Handle::run() throws.
  void register_it(std::chrono::milliseconds timeout);

  void* data() const override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  const std::shared_ptr<Handle> handle_;
  const size_t bytes_;
  const ForkGuard fork_guard_;
  void* data_ = nullptr;
  ncclWindow_t window_ = nullptr;  ///< NCCL may give none for memory that needs none
  void* registration_ = nullptr;   ///< likewise
};

}  // namespace farandole::comm::nccl
