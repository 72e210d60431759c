// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "farandole/comm/device_communicator.h"
#include "process_group/call.h"
#include "process_group/device/device_watchdog.h"
#include "process_group/device/pending_operations.h"
#include "process_group/device/progress_board.h"

namespace farandole {

/// What a group has for tensors on one type of accelerator: a communicator, which is made when the
/// first call tells the device, and a stream of its own.
///
/// The watchdog looks after what is on the stream: it lets go of tensors, and finds out what has
/// failed or takes too long. Then the lane aborts the group on all ranks; later calls and the Works
/// of what was pending throw that first error.
///
/// Threads: any; operations are enqueued one at a time.
/// Streams: an operation runs on the lane's stream, after what the caller's current stream was
/// given before the call. The host never waits.
class DeviceLane final : public Watched, public std::enable_shared_from_this<DeviceLane> {
 public:
  using Communicator = std::shared_ptr<comm::DeviceCommunicator>;

  /// What it is made of. The functions may be called by any thread.
  struct Parts {
    c10::DeviceType type;
    std::string group;
    int rank;
    /// Collective: makes the communicator for the current device.
    std::function<Communicator()> form;
    /// Collective, after form().
    std::function<std::unique_ptr<ProgressBoard>()> make_board;
    /// Told the first error that the lane meets by itself, after the abort.
    std::function<void(const std::exception_ptr&)> on_failure;
    /// Told of operations that have ended well, if asks_for_times().
    std::function<void(uint64_t completion_key, std::chrono::duration<double, std::milli>)> on_end;
    std::function<bool()> asks_for_times;
  };
  explicit DeviceLane(Parts parts);
  ~DeviceLane() override;

  /// Whether it works on `device`; false before connect(). Throws InvalidArgument for another
  /// device of this process.
  bool is_connected(c10::Device device) const;
  /// Makes the communicator, if there is none. Collective.
  void connect(c10::Device device);
  /// Null before connect() and after end().
  Communicator communicator() const;
  /// Empty before connect().
  std::optional<c10::Stream> stream() const;

  /// Puts `body` on the stream. A call that is not async makes the current stream wait for it.
  /// `timeout`: from when its inputs are there and it is the first on the stream. Throws the errors
  /// of the body, and the first error of the lane.
  c10::intrusive_ptr<c10d::Work> launch(const Call& call, Body body, uint64_t sequence,
                                        std::chrono::milliseconds timeout);

  /// Memory that collectives of the lane know. Collective, after connect().
  std::shared_ptr<comm::DeviceMemory> allocate(size_t bytes, std::chrono::milliseconds timeout);

  /// Fails what is pending and called later with `reason`, on all ranks.
  void abort(const std::string& reason);
  /// Fails what is pending and lets go of the communicator; waits two seconds at most.
  void end();

  bool look() override;

 private:
  std::shared_ptr<ProgressBoard> board() const;
  std::optional<c10::Device> device() const;
  std::exception_ptr failure() const;
  std::exception_ptr failure_of_communicator() const;
  void check_usable() const;
  void retire(DeviceOperation& operation) const;
  void check_peers();
  void check_time(const std::shared_ptr<DeviceOperation>& first);
  void fail(const std::exception_ptr& failure);
  void retire_within(std::chrono::milliseconds grace);

  const Parts parts_;
  std::mutex enqueue_mutex_;
  PendingOperations pending_;
  mutable std::mutex state_mutex_;
  std::optional<c10::Device> device_;     // guarded by state_mutex_
  std::optional<c10::Stream> stream_;     // guarded by state_mutex_
  Communicator communicator_;             // guarded by state_mutex_
  std::exception_ptr failure_;            // guarded by state_mutex_; the first
  std::shared_ptr<ProgressBoard> board_;  // guarded by state_mutex_; null before connect()
  // Of the watchdog's thread alone.
  std::weak_ptr<DeviceOperation> running_;  ///< the first one, once its inputs are there
  std::chrono::steady_clock::time_point running_since_;
  std::exception_ptr lost_;  ///< what is known of a peer whose process has ended
  std::chrono::steady_clock::time_point lost_since_;
};

}  // namespace farandole
