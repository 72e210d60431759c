// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "log.h"

namespace farandole {

/// Functions of the user under numbers of the user's, called in the order of these.
///
/// Threads: any. No lock is held while they run, so they may add and remove others. What they throw
/// is logged: whoever calls them has something more important to do.
template <class... Arguments>
class HookTable {
 public:
  using Hook = std::function<void(Arguments...)>;

  /// `what` names them in the log: "abort hook".
  explicit HookTable(const char* what) : what_(what) {}

  /// Takes the place of the one with the same `id`, if any.
  void add(int64_t id, Hook hook) {
    auto added = std::make_shared<const Hook>(std::move(hook));
    const std::lock_guard<std::mutex> lock(mutex_);
    hooks_[id].swap(added);
    some_.store(true, std::memory_order_relaxed);
  }
  void remove(int64_t id) {
    std::shared_ptr<const Hook> removed;  // what it holds may end with it: not under the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = hooks_.find(id);
    if (found == hooks_.end()) return;
    removed = std::move(found->second);
    hooks_.erase(found);
    some_.store(!hooks_.empty(), std::memory_order_relaxed);
  }
  bool empty() const { return !some_.load(std::memory_order_relaxed); }

  void call(const Arguments&... arguments) const {
    std::vector<std::shared_ptr<const Hook>> present;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (const auto& [id, hook] : hooks_) present.push_back(hook);
    }
    for (const auto& hook : present) {
      try {
        (*hook)(arguments...);
      } catch (const std::exception& error) {
        log(LogLevel::kError, std::string("a ") + what_ + " threw: " + error.what());
      }
    }
  }

 private:
  const char* const what_;
  mutable std::mutex mutex_;
  std::map<int64_t, std::shared_ptr<const Hook>> hooks_;  // guarded by mutex_
  std::atomic<bool> some_{false};                         // written under mutex_
};

/// What a group calls on events of its own. Threads: any.
struct GroupHooks {
  HookTable<> abort{"abort hook"};
  /// The completion key of a Work and how long it ran, in milliseconds.
  HookTable<uint64_t, float> completion{"completion hook"};
};

}  // namespace farandole
