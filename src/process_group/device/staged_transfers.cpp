// SPDX-License-Identifier: Apache-2.0
#include "process_group/device/staged_transfers.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <utility>

#include "comm/start_thread.h"
#include "process_group/collective_queue.h"
#include "process_group/device/stream_capture.h"

namespace farandole {

void StagedBatch::wait_on_host() {
  has_begun.wait();
  for (const auto& each : under_way) {
    try {
      each->wait(std::chrono::milliseconds(0));
    } catch (const std::exception&) {
      // who ends the operation meets it again
    }
  }
}

StagedTransfers::StagedTransfers(std::shared_ptr<StagedCommunicator> communicator)
    : communicator_(std::move(communicator)) {}

void StagedTransfers::add(Entry batch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) refuse_after_shutdown(communicator_->name());
  if (!running_) {
    thread_ = comm::start_thread("farandole p2p", "transfers",
                                 [self = shared_from_this()] { self->run(); });
    running_ = true;
  }
  called_.push_back(std::move(batch));
  wanted_.notify_one();
}

void StagedTransfers::wake() {
  const std::lock_guard<std::mutex> lock(mutex_);
  woken_ = true;
  wanted_.notify_one();
}

void StagedTransfers::run() {
  const QueriesWhileOthersCapture allowed;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wanted_.wait(lock,
                 [this] { return woken_ || !called_.empty() || (closed_ && begun_.empty()); });
    woken_ = false;
    std::deque<Entry> called;
    called.swap(called_);
    if (called.empty() && begun_.empty() && closed_) break;
    lock.unlock();
    for (Entry& each : called) {
      begin(*each);
      begun_.push_back(std::move(each));
    }
    begun_.erase(std::remove_if(begun_.begin(), begun_.end(),
                                [this](const Entry& each) { return finish_if_done(each); }),
                 begun_.end());
    lock.lock();
  }
  running_ = false;
  over_.notify_all();
}

/// Receives first: they wait for nothing on this rank.
void StagedTransfers::begin(StagedBatch& batch) {
  try {
    const c10::StreamGuard on_stream(batch.operation->stream());
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    batch.operation->await_inputs();
    for (const bool sends : {false, true}) {
      for (DeviceTransfer& each : *batch.transfers) {
        if (each.is_send() != sends) continue;
        each.make_flat();
        batch.under_way.push_back(each.begin(*communicator_, batch.options));
      }
    }
  } catch (...) {
    batch.failure = std::current_exception();
  }
  batch.all_begun.set_value();
  // It may end before it is the turn of the last one.
  for (const auto& each : batch.under_way) {
    each->when_done([self = weak_from_this()] {
      if (const auto alive = self.lock()) alive->wake();
    });
  }
}

bool StagedTransfers::finish_if_done(const Entry& batch) {
  const auto& all = batch->under_way;
  if (!std::all_of(all.begin(), all.end(), [](const auto& each) { return each->is_done(); })) {
    return false;
  }
  finish(batch);
  return true;
}

void StagedTransfers::finish(const Entry& batch) {
  std::exception_ptr failure = batch->failure;
  try {
    for (const auto& each : batch->under_way) each->wait(std::chrono::milliseconds(0));
    if (!failure) {
      const c10::StreamGuard on_stream(batch->operation->stream());
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      for (const auto& each : batch->under_way) communicator_->deliver(*each);
      for (DeviceTransfer& each : *batch->transfers) each.store();
    }
  } catch (...) {
    if (!failure) failure = std::current_exception();
  }
  batch->on_end(failure);
}

void StagedTransfers::close(std::chrono::milliseconds grace) {
  std::unique_lock<std::mutex> lock(mutex_);
  closed_ = true;
  wanted_.notify_one();
  std::thread thread = std::move(thread_);
  if (!thread.joinable()) return;
  // A hook that it runs may need what this thread holds; it owns all that it touches.
  const bool is_self = thread.get_id() == std::this_thread::get_id();
  const bool is_over = !is_self && over_.wait_for(lock, grace, [this] { return !running_; });
  lock.unlock();
  if (is_over) {
    thread.join();
  } else {
    thread.detach();
  }
}

}  // namespace farandole
