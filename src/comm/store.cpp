// SPDX-License-Identifier: Apache-2.0
#include "farandole/comm/store.h"

namespace farandole::comm {

Store::~Store() = default;

std::optional<std::string> Store::try_get(const std::string& key) {
  return get(key, std::chrono::milliseconds(0));
}

InProcessStore::~InProcessStore() = default;

void InProcessStore::set(const std::string& key, const std::string& value) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    values_[key] = value;
  }
  changed_.notify_all();
}

std::optional<std::string> InProcessStore::get(const std::string& key,
                                               std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto deadline = std::chrono::system_clock::now() + timeout;
  if (!changed_.wait_until(lock, deadline, [&] { return values_.count(key) != 0; })) {
    return std::nullopt;
  }
  return values_[key];
}

}  // namespace farandole::comm
