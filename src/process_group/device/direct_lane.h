// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <string>

#include "process_group/device/device_lane.h"
#include "process_group/device/progress_board.h"

namespace farandole {

/// A lane whose communicator works on the memory of devices: operations are on the stream when
/// their calls return.
///
/// The watchdog finds out what has failed or takes too long. Then the lane aborts the group on all
/// ranks; later calls and the Works of what was pending throw that first error.
///
/// Threads: any; operations are enqueued one at a time. The host never waits.
class DirectLane final : public DeviceLane {
 public:
  using Communicator = std::shared_ptr<comm::DeviceCommunicator>;

  /// `communicator` works on the device of `parts`.
  DirectLane(Parts parts, Communicator communicator, std::unique_ptr<ProgressBoard> board);
  ~DirectLane() override;

  Communicator communicator() const override;
  bool is_staged() const override { return false; }
  /// `timeout`: from when its inputs are there and it is the first on the stream. Throws the errors
  /// of the body, and the first error of the lane.
  c10::intrusive_ptr<c10d::Work> launch(Call& call, Body body,
                                        std::chrono::milliseconds timeout) override;
  std::shared_ptr<comm::DeviceMemory> allocate(size_t bytes, const c10::Stream& caller,
                                               std::chrono::milliseconds timeout) override;
  void abort(const std::string& reason) override;
  void end() override;

  bool look() override;

 private:
  std::exception_ptr failure() const;
  std::exception_ptr failure_of_communicator() const;
  void check_usable() const;
  void check_not_captured(const Call& call) const;
  void check_peers();
  void check_time(const std::shared_ptr<DeviceOperation>& first);
  void fail(const std::exception_ptr& failure);

  const std::unique_ptr<ProgressBoard> board_;
  std::mutex enqueue_mutex_;
  mutable std::mutex state_mutex_;
  Communicator communicator_;   // guarded by state_mutex_
  std::exception_ptr failure_;  // guarded by state_mutex_; the first
  // Of the watchdog's thread alone.
  std::weak_ptr<DeviceOperation> running_;  ///< the first one, once its inputs are there
  std::chrono::steady_clock::time_point running_since_;
  std::exception_ptr lost_;  ///< what is known of a peer whose process has ended
  std::chrono::steady_clock::time_point lost_since_;
};

}  // namespace farandole
