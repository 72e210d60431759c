// SPDX-License-Identifier: Apache-2.0
#include "farandole/process_group/work.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "comm/queued_call.h"
#include "farandole/comm/interrupt.h"
#include "farandole/error.h"
#include "farandole/process_group/autograd_error.h"

namespace farandole {
namespace {

using Clock = std::chrono::steady_clock;

/// A clock cannot count the longest timeouts of Python.
constexpr std::chrono::hours kLongestTimeout{24 * 365};
/// How often a wait asks whether it is interrupted.
constexpr std::chrono::milliseconds kInterruptInterval{50};
/// How long an interrupted wait waits for the collective, which has been aborted, to end.
constexpr std::chrono::milliseconds kAbortTime{2000};

}  // namespace

WorkFarandole::WorkFarandole(Description description, uint64_t sequence)
    : Work(description.rank, description.type),
      description_(std::move(description)),
      sequence_(sequence),
      done_(true) {
  completed_ = true;
}

WorkFarandole::WorkFarandole(Description description, Abort abort, const char* profiler_title)
    : Work(description.rank, description.type, profiler_title, description.outputs),
      description_(std::move(description)),
      abort_(std::move(abort)) {}

WorkFarandole::~WorkFarandole() = default;

uint64_t WorkFarandole::next_completion_key() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

bool WorkFarandole::isCompleted() { return done_.load(std::memory_order_acquire); }

bool WorkFarandole::isSuccess() const {
  return done_.load(std::memory_order_acquire) && !exception_;
}

std::exception_ptr WorkFarandole::exception() const {
  return done_.load(std::memory_order_acquire) ? exception_ : nullptr;
}

bool WorkFarandole::wait(std::chrono::milliseconds timeout) {
  if (!done_.load(std::memory_order_acquire)) {
    const bool is_limited = timeout > kNoTimeout;
    const auto end = Clock::now() + std::min<std::chrono::milliseconds>(timeout, kLongestTimeout);
    std::unique_lock<std::mutex> lock(mutex_);
    const auto is_done_within = [&](Clock::duration limit) {
      return cv_.wait_for(lock, limit, [this] { return completed_; });
    };
    const auto slice = [&]() -> Clock::duration {
      return is_limited ? std::min<Clock::duration>(kInterruptInterval, end - Clock::now())
                        : kInterruptInterval;
    };
    std::optional<comm::QueuedCall::Wait> wait;
    while (!is_done_within(slice())) {
      if (is_limited && Clock::now() >= end) throw_wait_timeout(timeout);
      lock.unlock();  // the check may need a lock of another language, whose holder may need this
      if (!is_limited && !wait) wait.emplace(description_.group, getSequencenumber());
      if (!comm::is_interrupted()) {
        lock.lock();
        continue;
      }
      const std::string subject = name() + " in group '" + description_.group + "' on rank " +
                                  std::to_string(description_.rank);
      if (!isCompleted()) abort_(comm::interrupted_text(subject));
      lock.lock();
      is_done_within(kAbortTime);  // it writes to tensors
      throw comm::interrupted_error(subject, {{}, description_.operation});
    }
  }
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

void WorkFarandole::throw_wait_timeout(std::chrono::milliseconds timeout) const {
  throw TimeoutError("wait-timeout",
                     "wait() for " + name() + " in group '" + description_.group + "' on rank " +
                         std::to_string(description_.rank) + " reached its timeout of " +
                         std::to_string(timeout.count()) + " ms.",
                     "it, or a collective queued before it, is still waiting for other ranks.",
                     "call wait() again, with a longer timeout or none.",
                     {{}, description_.operation});
}

std::string WorkFarandole::name() const {
  const uint64_t sequence = getSequencenumber();
  if (sequence == 0) return description_.operation;
  return "collective #" + std::to_string(sequence) + " " + description_.operation;
}

void WorkFarandole::synchronize() {}

std::vector<at::Tensor> WorkFarandole::result() { return description_.outputs; }

c10::intrusive_ptr<c10::ivalue::Future> WorkFarandole::getFuture() {
  c10::intrusive_ptr<c10::ivalue::Future> finished;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (future_) return future_;
    future_ = make_future();
    if (!completed_) return future_;
    finished = future_;
  }
  fulfil(finished);  // may need a lock of another language: not under ours
  return finished;
}

uint64_t WorkFarandole::getSequencenumber() const {
  return sequence_.load(std::memory_order_relaxed);
}

void WorkFarandole::abort() {
  if (!isCompleted()) abort_("abort() was called on a Work");
}

void WorkFarandole::complete(std::exception_ptr error) {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    exception_ = std::move(error);
    completed_ = true;
    done_.store(true, std::memory_order_release);
    future = future_;
  }
  if (recordFunctionEndCallback_) {
    recordFunctionEndCallback_();
    recordFunctionEndCallback_ = nullptr;
  }
  cv_.notify_all();
  if (future) fulfil(future);  // runs the callbacks: not under the lock
}

c10::intrusive_ptr<c10::ivalue::Future> WorkFarandole::make_future() const {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

void WorkFarandole::fulfil(const c10::intrusive_ptr<c10::ivalue::Future>& future) const {
  if (!exception_) {
    future->markCompleted(c10::IValue(description_.outputs));
    return;
  }
  future->setError(as_autograd_error(exception_));
}

}  // namespace farandole
