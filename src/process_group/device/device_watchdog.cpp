// SPDX-License-Identifier: Apache-2.0
#include "process_group/device/device_watchdog.h"

#include <chrono>
#include <thread>
#include <utility>

#include "comm/start_thread.h"
#include "process_group/device/stream_capture.h"

namespace farandole {

DeviceWatchdog& DeviceWatchdog::of_process() {
  static auto* const instance = new DeviceWatchdog;
  return *instance;
}

void DeviceWatchdog::start() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (started_) return;
  comm::start_thread("farandole watch", "the watch on devices", [this] { run(); }).detach();
  started_ = true;
}

void DeviceWatchdog::watch(std::weak_ptr<Watched> watched) {
  const std::lock_guard<std::mutex> lock(mutex_);
  watched_.push_back(std::move(watched));
  wanted_.notify_one();
}

void DeviceWatchdog::run() {
  constexpr std::chrono::milliseconds kPause{50};
  const QueriesWhileOthersCapture allowed;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wanted_.wait(lock, [this] { return !watched_.empty(); });
    std::vector<std::weak_ptr<Watched>> present;
    present.swap(watched_);
    lock.unlock();
    std::vector<std::weak_ptr<Watched>> busy;
    for (std::weak_ptr<Watched>& each : present) {
      const std::shared_ptr<Watched> alive = each.lock();
      if (alive && alive->look()) busy.push_back(std::move(each));
    }
    std::this_thread::sleep_for(kPause);
    lock.lock();
    watched_.insert(watched_.end(), busy.begin(), busy.end());
  }
}

}  // namespace farandole
