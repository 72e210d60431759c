// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "farandole/comm/device_communicator.h"
#include "farandole/process_group/work.h"
#include "process_group/call.h"
#include "process_group/device/device_operation.h"
#include "process_group/device/device_watchdog.h"
#include "process_group/device/pending_operations.h"

namespace farandole {

/// What a group has for tensors on its accelerator, from the first call on: a stream of its own,
/// and a way for data to travel. The watchdog lets go of tensors whose operations have ended.
///
/// Threads: any.
/// Streams: an operation runs on the lane's stream, after what the caller's current stream was
/// given before the call.
class DeviceLane : public Watched, public std::enable_shared_from_this<DeviceLane> {
 public:
  /// What it is made of. The functions may be called by any thread.
  struct Parts {
    std::string group;
    int rank;
    c10::Device device;
    /// Told the errors that the lane meets by itself.
    std::function<void(const std::exception_ptr&)> on_failure;
    /// Told of operations that have ended well, if asks_for_times().
    std::function<void(uint64_t completion_key, std::chrono::duration<double, std::milli>)> on_end;
    std::function<bool()> asks_for_times;
  };
  explicit DeviceLane(Parts parts);
  ~DeviceLane() override;

  /// Throws InvalidArgument for another device of this process than its own.
  void check_device(c10::Device device) const;
  const c10::Stream& stream() const { return stream_; }

  /// That which works on the memory of the device; null if there is none, and after end().
  virtual std::shared_ptr<comm::DeviceCommunicator> communicator() const { return nullptr; }
  /// Whether operations are put on the stream after the calls that ask for them.
  virtual bool is_staged() const = 0;

  /// A call that is not async makes the current stream wait for `body`. `timeout`: of the
  /// collective or transfers. Throws what the call meets; the Work has what comes later.
  virtual c10::intrusive_ptr<c10d::Work> launch(Call& call, Body body,
                                                std::chrono::milliseconds timeout) = 0;

  /// Memory for collectives, of stream `caller`. Collective, between those of the group's queue.
  /// Throws SystemError on all ranks if one has none left.
  virtual std::shared_ptr<comm::DeviceMemory> allocate(size_t bytes, const c10::Stream& caller,
                                                       std::chrono::milliseconds timeout) = 0;

  /// Fails what is pending and called later with `reason`, on all ranks.
  virtual void abort(const std::string& reason) = 0;
  /// Waits two seconds at most for operations that are not on the stream yet; whether all are.
  virtual bool drain() { return true; }
  /// Waits two seconds at most for what is pending, and fails the rest.
  virtual void end() = 0;

 protected:
  const Parts& parts() const { return parts_; }
  PendingOperations& pending() { return pending_; }
  const PendingOperations& pending() const { return pending_; }
  /// Its Work; `abort` is that of a Work.
  c10::intrusive_ptr<WorkFarandole> make_work(const Call& call,
                                              const std::shared_ptr<DeviceOperation>& operation,
                                              WorkFarandole::Abort abort) const;
  /// "group 'g' on rank 1"
  std::string own_position() const;
  /// Has the watchdog look after it until it has ended.
  void watch(const std::shared_ptr<DeviceOperation>& operation);
  /// Lets go of what has ended.
  void retire(DeviceOperation& operation) const;
  /// Returns when nothing is pending, or after `grace`.
  void retire_within(std::chrono::milliseconds grace);

 private:
  const Parts parts_;
  const c10::Stream stream_;
  PendingOperations pending_;
};

}  // namespace farandole
