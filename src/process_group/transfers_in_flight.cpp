// SPDX-License-Identifier: Apache-2.0
#include "process_group/transfers_in_flight.h"

#include <utility>

#include "comm/start_thread.h"

namespace farandole {
namespace {

constexpr std::chrono::seconds kGrace{2};

}  // namespace

TransfersInFlight::~TransfersInFlight() = default;

std::vector<TransfersInFlight::Entry> TransfersInFlight::entries() const {
  std::vector<Entry> copies;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [work, entry] : entries_) copies.push_back(entry);
  return copies;
}

/// Those that are done take their result and leave.
void TransfersInFlight::look() {
  for (const Entry& entry : entries()) entry->isCompleted();
}

void TransfersInFlight::add(Entry work) {
  bool many = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const TransferWork* key = work.get();
    entries_.emplace(key, std::move(work));
    many = entries_.size() >= look_at_size_;
  }
  if (!many) return;
  look();
  const std::lock_guard<std::mutex> lock(mutex_);
  look_at_size_ = 8 + 2 * entries_.size();
}

void TransfersInFlight::remove(const TransferWork* work) {
  Entry last;  // what it holds may end with it: not under the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(work);
  if (found == entries_.end()) return;
  last = std::move(found->second);
  entries_.erase(found);
}

bool TransfersInFlight::busy() {
  look();
  const std::lock_guard<std::mutex> lock(mutex_);
  return !entries_.empty();
}

void TransfersInFlight::start_watching(const std::shared_ptr<TransfersInFlight>& self) {
  const std::lock_guard<std::mutex> lock(self->mutex_);
  if (self->closed_ || self->watcher_.joinable()) return;
  self->watcher_ = comm::start_thread("farandole p2p", "transfers", [self] { self->watch(); });
}

void TransfersInFlight::wake() {
  const std::lock_guard<std::mutex> lock(mutex_);
  woken_ = true;
  wanted_.notify_one();
}

void TransfersInFlight::watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wanted_.wait(lock, [this] { return woken_ || closed_; });
    if (closed_) return;
    woken_ = false;
    looking_ = true;
    lock.unlock();
    look();
    lock.lock();
    looking_ = false;
    idle_.notify_all();
  }
}

void TransfersInFlight::close() {
  for (const Entry& entry : entries()) {
    try {
      entry->wait();
    } catch (const std::exception&) {
      // its owner sees it
    }
  }
  std::unique_lock<std::mutex> lock(mutex_);
  closed_ = true;
  std::thread watcher = std::move(watcher_);
  if (!watcher.joinable()) return;
  wanted_.notify_one();
  // A callback that it runs may need what this thread holds; it owns all that it touches.
  const bool is_self = watcher.get_id() == std::this_thread::get_id();
  const bool idle = !is_self && idle_.wait_for(lock, kGrace, [this] { return !looking_; });
  lock.unlock();
  if (idle) {
    watcher.join();
  } else {
    watcher.detach();
  }
}

}  // namespace farandole
