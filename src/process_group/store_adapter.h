// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "farandole/comm/store.h"

namespace farandole {

/// Adds one to the number under `key`, 0 at first, and returns it. Throws SystemError where the
/// store is gone.
int64_t count_up(c10d::Store& store, const std::string& key);

/// A c10d::Store as comm sees it.
///
/// It never waits within the store: a TCPStore has one connection, which a thread that waits keeps
/// from all others. Threads: those of the c10d::Store.
class StoreAdapter : public comm::Store {
 public:
  explicit StoreAdapter(c10::intrusive_ptr<c10d::Store> store);
  ~StoreAdapter() override;

  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key,
                                 std::chrono::milliseconds timeout) override;
  std::optional<std::string> try_get(const std::string& key) override;
  /// Deletes the keys that this object has set, as far as the store can.
  void delete_own_keys() noexcept;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::mutex mutex_;
  std::set<std::string> own_;  ///< keys; guarded by mutex_
};

}  // namespace farandole
