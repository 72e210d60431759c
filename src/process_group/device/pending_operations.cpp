// SPDX-License-Identifier: Apache-2.0
#include "process_group/device/pending_operations.h"

#include <utility>

namespace farandole {

bool PendingOperations::add(Entry operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_.push_back(std::move(operation));
  return !std::exchange(watched_, true);
}

bool PendingOperations::rest() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (entries_.empty()) watched_ = false;
  return entries_.empty();
}

std::vector<PendingOperations::Entry> PendingOperations::take_ended() {
  std::vector<Entry> ended;
  const std::lock_guard<std::mutex> lock(mutex_);
  while (!entries_.empty() && entries_.front()->has_ended()) {
    ended.push_back(std::move(entries_.front()));
    entries_.pop_front();
  }
  return ended;
}

std::vector<PendingOperations::Entry> PendingOperations::take_all() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Entry> all(entries_.begin(), entries_.end());
  entries_.clear();
  return all;
}

void PendingOperations::fail(const std::exception_ptr& failure) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Entry& each : entries_) each->fail(failure);
}

void PendingOperations::doom() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Entry& each : entries_) each->doom();
}

PendingOperations::Entry PendingOperations::first() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return entries_.empty() ? nullptr : entries_.front();
}

}  // namespace farandole
