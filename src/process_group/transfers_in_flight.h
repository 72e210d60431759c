// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "process_group/transfer_work.h"

namespace farandole {

/// The sends and receives of one group that nobody has seen done yet. It keeps their tensors alive
/// where the caller drops the Work, and finishes those whose futures somebody holds: on one thread,
/// which exists from the first such future on and sleeps until a transfer wakes it.
///
/// Threads: any. Fork: in a child it must not be touched.
class TransfersInFlight {
 public:
  using Entry = c10::intrusive_ptr<TransferWork>;

  ~TransfersInFlight();

  /// Keeps `work` until it is done. Lets go of others that are.
  void add(Entry work);
  void remove(const TransferWork* work);
  /// Whether one of them is not done.
  bool busy();
  /// `self` owns this. Throws SystemError if the thread cannot start.
  static void start_watching(const std::shared_ptr<TransfersInFlight>& self);
  /// Has the watching thread look; never blocks long.
  void wake();
  /// Waits for all of them, which must end by themselves soon (their communicator is aborted), and
  /// ends the thread.
  void close();

 private:
  std::vector<Entry> entries() const;
  void look();
  void watch();

  mutable std::mutex mutex_;
  std::condition_variable wanted_;
  std::condition_variable idle_;
  std::map<const TransferWork*, Entry> entries_;  // guarded by mutex_
  size_t look_at_size_ = 8;                       // guarded by mutex_
  bool looking_ = false;                          // guarded by mutex_; the thread is at it
  bool woken_ = false;                            // guarded by mutex_
  bool closed_ = false;                           // guarded by mutex_
  std::thread watcher_;                           // guarded by mutex_
};

}  // namespace farandole
