// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_device/work_queue.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "support/simulated_device/errors.h"
#include "support/simulated_device/schedule.h"

namespace farandole::sim {
namespace {

std::atomic<pid_t> process_with_threads{0};  ///< 0: none yet

}  // namespace

uint64_t WorkQueue::push(std::function<void()> task) {
  check_process();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (pushed_ == 0) start();
  tasks_.push_back(std::move(task));
  changed_.notify_all();
  return ++pushed_;
}

uint64_t WorkQueue::last() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return pushed_;
}

void WorkQueue::demand(uint64_t position) {
  const std::lock_guard<std::mutex> lock(mutex_);
  demanded_ = std::max(demanded_, position);
  changed_.notify_all();
}

void WorkQueue::await(uint64_t position) const {
  check_process();
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return reached_ >= position; });
}

bool WorkQueue::has_reached(uint64_t position) const {
  check_process();
  const std::lock_guard<std::mutex> lock(mutex_);
  return reached_ >= position;
}

bool WorkQueue::lost_in_fork() {
  const pid_t process = process_with_threads.load();
  return process != 0 && process != ::getpid();
}

void WorkQueue::check_process() {
  if (!lost_in_fork()) return;
  throw DeviceError(
      "simulated devices cannot be used in this process.\n"
      "why: it was forked after its parent had used them, and has none of their threads.\n"
      "fix: fork before the first use of a device.");
}

void WorkQueue::start() {
  process_with_threads.store(::getpid());
  std::thread([this] { run(); }).detach();
}

void WorkQueue::run() {
  ::pthread_setname_np(::pthread_self(), name_.substr(0, 15).c_str());
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return may_run(); });
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it holds is freed before anyone sees it done
    lock.lock();
    ++reached_;
    changed_.notify_all();
  }
}

bool WorkQueue::may_run() const {
  if (tasks_.empty()) return false;
  return kind_ == Kind::kBackground || schedule() != Schedule::kLazy || demanded_ > reached_;
}

}  // namespace farandole::sim
