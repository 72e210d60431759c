// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_nccl/call_in_progress.h"

#include <atomic>
#include <thread>
#include <utility>

namespace farandole::sim::nccl {

struct CallInProgress::Call {
  std::atomic<bool> has_worked{false};
  std::function<void()> finish;
  bool was_polled = false;  ///< guarded by polls_
};

void CallInProgress::begin(std::function<void()> work, std::function<void()> finish) {
  auto call = std::make_shared<Call>();
  call->finish = std::move(finish);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    call_ = call;
  }
  if (!work) {
    call->has_worked.store(true);
    return;
  }
  std::thread([call, work = std::move(work)] {
    work();
    call->has_worked.store(true);
  }).detach();
}

bool CallInProgress::exists() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return call_ != nullptr;
}

bool CallInProgress::poll() {
  const std::lock_guard<std::mutex> polling(polls_);
  std::shared_ptr<Call> call;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    call = call_;
  }
  if (call == nullptr) return true;
  if (!call->has_worked.load() || !std::exchange(call->was_polled, true)) return false;
  if (call->finish) call->finish();
  const std::lock_guard<std::mutex> lock(mutex_);
  call_ = nullptr;
  return true;
}

void CallInProgress::drop() {
  std::shared_ptr<Call> dropped;  // ends without the mutex
  const std::lock_guard<std::mutex> lock(mutex_);
  dropped.swap(call_);
}

}  // namespace farandole::sim::nccl
