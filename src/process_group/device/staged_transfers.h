// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "process_group/device/device_operation.h"
#include "process_group/device/device_transfers.h"
#include "process_group/device/staged_communicator.h"

namespace farandole {

/// Sends and receives that are one operation of a StagedLane.
struct StagedBatch {
  std::shared_ptr<DeviceOperation> operation;
  std::shared_ptr<std::vector<DeviceTransfer>> transfers;
  comm::CollectiveOptions options;
  /// Told on the thread when all of them have ended, with the error or null; `operation` is not
  /// ended yet. It must not wait for other messages.
  std::function<void(const std::exception_ptr&)> on_end;

  /// Waits as the communicator on host memory does, which also notes timeouts. Any thread.
  void wait_on_host();

  // Of StagedTransfers.
  std::promise<void> all_begun;
  std::shared_future<void> has_begun = all_begun.get_future().share();
  std::vector<std::shared_ptr<comm::Transfer>> under_way;  ///< unchanged once all have begun
  std::exception_ptr failure;                              ///< of their beginning
};

/// Moves the messages of a StagedLane on one thread, which is there from the first one on and
/// sleeps while it has nothing to do: it begins them in the order of their calls, when what they
/// send is on the host, and enqueues the copies of what has come. Many are under way at once.
///
/// Threads: any. Fork: in a child it must not be touched.
/// Streams: copies run on the stream of the operations.
class StagedTransfers : public std::enable_shared_from_this<StagedTransfers> {
 public:
  using Entry = std::shared_ptr<StagedBatch>;

  explicit StagedTransfers(std::shared_ptr<StagedCommunicator> communicator);

  /// Throws AbortedError after close(), SystemError if the thread cannot start.
  void add(Entry batch);
  /// Lets the thread end when it has nothing left, and waits for that for `grace` at most.
  void close(std::chrono::milliseconds grace);

 private:
  void run();
  void begin(StagedBatch& batch);
  void wake();
  bool finish_if_done(const Entry& batch);
  void finish(const Entry& batch);

  const std::shared_ptr<StagedCommunicator> communicator_;
  std::mutex mutex_;
  std::condition_variable wanted_;
  std::condition_variable over_;
  std::deque<Entry> called_;  // guarded by mutex_; not begun yet
  bool woken_ = false;        // guarded by mutex_
  bool closed_ = false;       // guarded by mutex_
  bool running_ = false;      // guarded by mutex_; there is a thread
  std::thread thread_;        // guarded by mutex_
  std::vector<Entry> begun_;  // of the thread alone
};

}  // namespace farandole
