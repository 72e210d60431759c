// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "farandole/export.h"

namespace farandole::comm {

/// The few words that ranks exchange before they have a communicator. c10d::Store, MPI and tests
/// adapt to it.
///
/// Threads: implementations take calls from any thread.
class FARANDOLE_API Store {
 public:
  virtual ~Store();
  /// Publishes `value` under `key`, in place of what is there. Where several ranks do so at about
  /// the same time, any one of their values may stay.
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits until `key` is there; nullopt after `timeout`.
  virtual std::optional<std::string> get(const std::string& key,
                                         std::chrono::milliseconds timeout) = 0;
  /// The value of `key` if it is there already. By default a get() without patience; for stores
  /// that do more than return when a get() is in vain.
  virtual std::optional<std::string> try_get(const std::string& key);
};

/// A Store for ranks that are threads of one process.
class FARANDOLE_API InProcessStore : public Store {
 public:
  ~InProcessStore() override;
  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key,
                                 std::chrono::milliseconds timeout) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;  // guarded by mutex_
};

}  // namespace farandole::comm
