// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/progress_thread.h"

#include <algorithm>
#include <chrono>

#include "comm/mpi/runtime.h"
#include "comm/start_thread.h"
#include "farandole/error.h"

namespace farandole::comm::mpi {
namespace {

constexpr std::chrono::milliseconds kInterval{1};
/// How long a process that does not finalize MPI waits for what it has sent.
constexpr std::chrono::seconds kDelivery{5};

}  // namespace

ProgressThread& ProgressThread::get() {
  static auto* const thread = new ProgressThread;
  return *thread;
}

void ProgressThread::add(const std::shared_ptr<Progressing>& work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  work_.emplace_back(work);
  is_wanted_ = true;
  changed_.notify_one();
  if (thread_.joinable() || ends_) return;
  try {
    thread_ = start_thread("farandole mpi", "transfers", [this] { run(); });
  } catch (const SystemError&) {
    work_.pop_back();
    throw;
  }
  Runtime::stop_at_end([](bool delivers) { ProgressThread::get().stop(delivers); });
}

void ProgressThread::wake() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (sleeps_) changed_.notify_one();
  is_wanted_ = true;
}

void ProgressThread::stop(bool delivers) {
  std::thread ended;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (delivers && thread_.joinable()) {
      is_wanted_ = true;
      changed_.notify_one();
      idle_.wait_for(lock, kDelivery, [this] { return sleeps_ && !is_wanted_; });
    }
    ends_ = true;
    changed_.notify_one();
    ended.swap(thread_);
  }
  if (ended.joinable()) ended.join();
}

void ProgressThread::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!ends_) {
    is_wanted_ = false;
    const auto all = work_;
    lock.unlock();
    bool is_under_way = false;
    for (const auto& each : all) {
      if (const auto work = each.lock()) is_under_way = work->progress() || is_under_way;
    }
    lock.lock();
    work_.erase(
        std::remove_if(work_.begin(), work_.end(), [](const auto& each) { return each.expired(); }),
        work_.end());
    if (is_under_way) {
      changed_.wait_for(lock, kInterval, [this] { return ends_; });
    } else {
      sleeps_ = true;
      idle_.notify_all();
      changed_.wait(lock, [this] { return ends_ || is_wanted_; });
      sleeps_ = false;
    }
  }
}

}  // namespace farandole::comm::mpi
