// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <mutex>

#include "farandole/process_group/work.h"
#include "process_group/device/device_operation.h"

namespace farandole {

/// A collective or transfer of tensors on an accelerator. It is on the group's stream when its Work
/// is made, or, staged through host memory, once the ranks have exchanged what is there.
///
/// Threads: any.
/// Streams: wait() and synchronize() make the current stream wait for the operation; the host goes
/// on once it is enqueued, which is at once unless it is staged. What this rank knows of the
/// failure of the group is thrown by wait().
class DeviceWork final : public WorkFarandole {
 public:
  /// `abort` ends the group. `peer`: of a send or receive, else -1.
  DeviceWork(Description description, std::shared_ptr<DeviceOperation> operation, Abort abort,
             int peer);
  ~DeviceWork() override;

  /// Whether the device has done it, or it has failed; of a captured one, whether it is enqueued.
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  /// Makes the current stream wait, once the operation is enqueued. With a timeout the host waits
  /// too, until the device has done it: TimeoutError after `timeout`; it goes on and may be waited
  /// for again. With TORCH_NCCL_BLOCKING_WAIT=1 the host always waits.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  /// Holds the output tensors once the operation is enqueued. Whoever waits for it makes its
  /// current stream wait for the operation, and for others that the group was given before this was
  /// called first.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  int sourceRank() const override { return peer_; }

 private:
  /// Without a timeout until the watchdog finds that it takes too long.
  void wait_on_host(std::chrono::milliseconds timeout,
                    std::chrono::steady_clock::time_point deadline) const;

  const std::shared_ptr<DeviceOperation> operation_;
  const int peer_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by future_mutex_
};

}  // namespace farandole
