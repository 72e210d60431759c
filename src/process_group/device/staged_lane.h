// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "process_group/collective_queue.h"
#include "process_group/device/device_lane.h"
#include "process_group/device/staged_communicator.h"
#include "process_group/device/staged_transfers.h"

namespace farandole {

/// A lane whose data travels through pinned host memory and the communicator for tensors on the
/// CPU, for devices whose memory no other communicator reaches, and for ranks that share one.
///
/// A collective runs in the group's order of collectives: a thread waits for the copy of its inputs
/// and for the other ranks, then enqueues the copy of its results. So it is compared with those of
/// the other ranks and fails as one on the CPU does. Messages run beside, as those on the CPU; what
/// calls back when one has come runs on a thread of its own, and may wait for others.
///
/// Threads: any. A call that is not async waits on the host, as wait() of its Work does, until the
/// copy of the results is enqueued: only then has the stream something that it can be made to wait
/// for.
class StagedLane final : public DeviceLane {
 public:
  /// Tells the queue that a collective has ended, before others may learn it.
  using Ended = std::function<void()>;
  /// Runs `task`, which must not throw, in the order of the group's collectives: on this thread, or
  /// if `async` or others are ahead on a thread of the group. Returns its number.
  using RunInOrder = std::function<uint64_t(bool async, std::function<void(const Ended&)> task)>;

  StagedLane(Parts parts, const std::shared_ptr<comm::Communicator>& host, RunInOrder run_in_order);
  ~StagedLane() override;

  bool is_staged() const override { return true; }
  c10::intrusive_ptr<c10d::Work> launch(Call& call, Body body,
                                        std::chrono::milliseconds timeout) override;
  std::shared_ptr<comm::DeviceMemory> allocate(size_t bytes, const c10::Stream& caller,
                                               std::chrono::milliseconds timeout) override;
  void abort(const std::string& reason) override;
  bool drain() override;
  void end() override;

  bool look() override;

 private:
  std::shared_ptr<DeviceOperation> begin(const Call& call, std::chrono::milliseconds timeout);
  uint64_t launch_collective(const Call& call, const std::shared_ptr<DeviceOperation>& operation,
                             Body body, std::chrono::milliseconds timeout);
  void launch_transfers(const Call& call, const std::shared_ptr<DeviceOperation>& operation,
                        std::chrono::milliseconds timeout);
  void run(DeviceOperation& operation, const Body& body, const comm::CollectiveOptions& options);
  void finish(const std::shared_ptr<DeviceOperation>& operation, Body kept,
              const std::exception_ptr& failure);
  void call_back_elsewhere(const std::shared_ptr<DeviceOperation>& operation);
  void count(int change);
  [[noreturn]] void refuse_memory(size_t bytes, int rank, bool is_full) const;
  std::exception_ptr own_failure(const std::exception_ptr& failure);

  const std::shared_ptr<comm::Communicator> host_;
  const std::shared_ptr<StagedCommunicator> communicator_;
  const RunInOrder run_in_order_;
  const std::shared_ptr<StagedTransfers> transfers_;
  CollectiveQueue callbacks_;  ///< of messages; nobody asks for its numbers
  std::mutex mutex_;
  std::condition_variable idle_;
  int on_the_way_ = 0;  // guarded by mutex_; operations that are not on the stream yet
};

}  // namespace farandole
