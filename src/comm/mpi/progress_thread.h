// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace farandole::comm::mpi {

/// Something that moves while nobody waits for it.
class Progressing {
 public:
  virtual ~Progressing() = default;
  /// Moves what can be moved; returns whether something is under way still. Does not wait.
  virtual bool progress() = 0;
};

/// The one thread of this process that drives messages for which nobody waits. MPI wakes no thread,
/// so it looks every millisecond while messages are under way, and sleeps while there are none. It
/// ends before MPI is finalized.
///
/// Threads: any. Never destroyed.
class ProgressThread {
 public:
  static ProgressThread& get();
  /// Drives `work` while it lives. Starts the thread; throws SystemError if it cannot.
  void add(const std::shared_ptr<Progressing>& work);
  /// Something is under way.
  void wake();
  /// Returns when the thread has ended, and no more work is driven. `delivers`: waits a few seconds
  /// for what is under way.
  void stop(bool delivers);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable idle_;
  std::vector<std::weak_ptr<Progressing>> work_;  ///< guarded by mutex_
  bool is_wanted_ = false;                        ///< guarded by mutex_
  bool sleeps_ = false;                           ///< guarded by mutex_; until it is wanted
  bool ends_ = false;                             ///< guarded by mutex_
  std::thread thread_;                            ///< guarded by mutex_
};

}  // namespace farandole::comm::mpi
