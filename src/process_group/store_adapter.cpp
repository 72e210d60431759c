// SPDX-License-Identifier: Apache-2.0
#include "process_group/store_adapter.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "farandole/error.h"

namespace farandole {
namespace {

/// The longest pause between two looks for a key.
constexpr std::chrono::milliseconds kMostPause{20};

/// Runs `call` and turns the errors of the store's network into ours.
template <class Function>
auto checked(const char* what, const std::string& key, Function&& call) {
  try {
    return call();
  } catch (const c10::Error& error) {
    throw SystemError("store-failed",
                      std::string("the store could not ") + what + " '" + key + "'.",
                      error.what_without_backtrace(),
                      "check that the process that holds the store (rank 0 or torchrun) is "
                      "running, and that MASTER_ADDR and MASTER_PORT lead to it.");
  }
}

}  // namespace

int64_t count_up(c10d::Store& store, const std::string& key) {
  return checked("count", key, [&] { return store.add(key, 1); });
}

StoreAdapter::StoreAdapter(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

StoreAdapter::~StoreAdapter() = default;

void StoreAdapter::set(const std::string& key, const std::string& value) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    own_.insert(key);
  }
  checked("set", key, [&] { store_->set(key, value); });
}

std::optional<std::string> StoreAdapter::get(const std::string& key,
                                             std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::chrono::milliseconds pause(1);
  while (true) {
    if (auto value = try_get(key)) return value;
    if (std::chrono::steady_clock::now() >= deadline) return std::nullopt;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kMostPause);
  }
}

std::optional<std::string> StoreAdapter::try_get(const std::string& key) {
  // TCPStore logs two warnings for every wait() in vain, and none for check().
  return checked("get", key, [&]() -> std::optional<std::string> {
    if (!store_->check({key})) return std::nullopt;
    return store_->get_to_str(key);
  });
}

void StoreAdapter::delete_own_keys() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    for (const std::string& key : own_) store_->deleteKey(key);
  } catch (const std::exception&) {  // a store may know no deletion; then they stay
  }
  own_.clear();
}

}  // namespace farandole
