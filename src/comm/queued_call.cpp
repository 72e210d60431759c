// SPDX-License-Identifier: Apache-2.0
#include "comm/queued_call.h"

#include <pthread.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <utility>

#include "comm/fork_safe_mutex.h"

namespace farandole::comm {
namespace {

thread_local const QueuedCall* running_call = nullptr;
/// Calls of all queues that have not ended.
std::atomic<int> all_calls{0};

/// What each thread waits for, by Caller::number: a group and the number of its call.
using Waits = std::map<uint32_t, std::pair<std::string, uint64_t>>;

Waits& waits() {
  static auto* const all = new Waits;  // never destroyed
  return *all;
}

std::mutex& waits_mutex() { return fork_safe_mutex<QueuedCall>(); }

/// A forked child has none of the parent's calls and waits. Its mutex is free by then.
[[maybe_unused]] const int forgets_in_child = ::pthread_atfork(nullptr, nullptr, [] {
  all_calls.store(0);
  waits().clear();
});

}  // namespace

QueuedCall::Caller QueuedCall::Caller::this_thread() {
  static std::atomic<uint32_t> last{0};
  thread_local const uint32_t own = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return {own, ::gettid()};  // which is another one after a fork
}

QueuedCall::QueuedCall(Queue& queue, uint64_t number) : queue_(queue), number_(number) {
  all_calls.fetch_add(1);
  queue_.calls.fetch_add(1);
}

QueuedCall::~QueuedCall() {
  queue_.calls.fetch_sub(1);
  all_calls.fetch_sub(1);
}

bool QueuedCall::is_awaited() const {
  const std::lock_guard lock(waits_mutex());
  const auto found = waits().find(caller_.number);
  return found != waits().end() && found->second.first == queue_.group &&
         found->second.second >= number_;
}

QueuedCall::Run::Run(const QueuedCall& call) : outer_(std::exchange(running_call, &call)) {}

QueuedCall::Run::~Run() { running_call = outer_; }

QueuedCall::Callbacks::Callbacks() { all_calls.fetch_add(1); }

QueuedCall::Callbacks::~Callbacks() { all_calls.fetch_sub(1); }

QueuedCall::Wait::Wait(std::string group, uint64_t number) : thread_(Caller::this_thread().number) {
  const std::lock_guard lock(waits_mutex());
  waits()[thread_] = {std::move(group), number};
}

QueuedCall::Wait::~Wait() {
  const std::lock_guard lock(waits_mutex());
  waits().erase(thread_);
}

QueuedCall::Caller QueuedCall::current_caller() {
  return running_call == nullptr ? Caller::this_thread() : running_call->caller();
}

bool QueuedCall::is_caller_stuck() {
  const int own = running_call == nullptr ? 0 : running_call->queue_.calls.load();
  return all_calls.load() == own && (running_call == nullptr || running_call->is_awaited());
}

}  // namespace farandole::comm
