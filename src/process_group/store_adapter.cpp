// SPDX-License-Identifier: Apache-2.0
#include "process_group/store_adapter.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "farandole/error.h"

namespace farandole {
namespace {

/// Runs `call` and turns the errors of the store's network into ours.
template <class Function>
auto checked(const char* what, const std::string& key, Function&& call) {
  try {
    return call();
  } catch (const c10::Error& error) {
    throw SystemError(
        std::string("the store could not ") + what + " '" + key + "'.",
        error.what_without_backtrace(),
        "see that the process that holds the store (rank 0 or torchrun) lives and that "
        "MASTER_ADDR and MASTER_PORT lead to it.");
  }
}

std::string count_in(c10d::Store& store, int rank) {
  const std::string counter = "farandole/made_by_rank_" + std::to_string(rank);
  return "farandole/" + std::to_string(count_up(store, counter)) + "/";
}

}  // namespace

int64_t count_up(c10d::Store& store, const std::string& key) {
  return checked("count", key, [&] { return store.add(key, 1); });
}

StoreAdapter::StoreAdapter(c10::intrusive_ptr<c10d::Store> store, int rank)
    : store_(std::move(store)), prefix_(count_in(*store_, rank)) {}

StoreAdapter::~StoreAdapter() = default;

void StoreAdapter::set(const std::string& key, const std::string& value) {
  checked("set", key, [&] { store_->set(prefix_ + key, value); });
}

std::optional<std::string> StoreAdapter::get(const std::string& key,
                                             std::chrono::milliseconds timeout) {
  // Zero would mean "for ever" to some stores.
  const auto patience = std::max(timeout, std::chrono::milliseconds(1));
  const auto deadline = std::chrono::steady_clock::now() + patience;
  return checked("get", key, [&]() -> std::optional<std::string> {
    try {
      store_->wait({prefix_ + key}, patience);
    } catch (const c10::DistStoreError&) {
      return std::nullopt;  // timed out
    } catch (const c10::Error&) {
      // FileStore has no type of its own for that.
      if (std::chrono::steady_clock::now() < deadline) throw;
      return std::nullopt;
    }
    return store_->get_to_str(prefix_ + key);
  });
}

std::optional<std::string> StoreAdapter::try_get(const std::string& key) {
  // TCPStore logs two warnings for every wait() in vain, and none for check().
  return checked("get", key, [&]() -> std::optional<std::string> {
    if (!store_->check({prefix_ + key})) return std::nullopt;
    return store_->get_to_str(prefix_ + key);
  });
}

}  // namespace farandole
