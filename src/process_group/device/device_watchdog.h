// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

namespace farandole {

/// Whom the watchdog looks after.
class Watched {
 public:
  virtual ~Watched() = default;
  /// Called about 20 times a second by the watchdog's thread. False: no more, until watch() is
  /// called again. Must not throw or wait for other ranks.
  virtual bool look() = 0;
};

/// The thread of this process that looks after what accelerators do for its groups. It exists from
/// the first call of start() on, and sleeps while there is nothing to look after. It never needs
/// Python's lock.
///
/// Threads: any. Fork: a child has no such thread and must not use it.
class DeviceWatchdog {
 public:
  static DeviceWatchdog& of_process();

  /// Before watch(), where the caller can tell the other ranks of a failure. Throws SystemError if
  /// the thread cannot start.
  void start();
  /// Looks after `watched` until its look() returns false or it is gone.
  void watch(std::weak_ptr<Watched> watched);

 private:
  DeviceWatchdog() = default;  // never destroyed: its thread ends with the process

  [[noreturn]] void run();

  std::mutex mutex_;
  std::condition_variable wanted_;
  std::vector<std::weak_ptr<Watched>> watched_;  // guarded by mutex_
  bool started_ = false;                         // guarded by mutex_
};

}  // namespace farandole
