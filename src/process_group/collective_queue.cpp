// SPDX-License-Identifier: Apache-2.0
#include "process_group/collective_queue.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/queued_call.h"
#include "comm/start_thread.h"
#include "farandole/error.h"

namespace farandole {

void refuse_after_shutdown(const std::string& group) {
  throw AbortedError("group-shut-down", "group '" + group + "' was used after it was shut down.",
                     "destroy(), shutdown() or the exit of the process ended it on this rank.",
                     "make a new group with init_process_group() or new_group().");
}

struct CollectiveQueue::State {
  explicit State(std::string name) : calls{std::move(name)} {}

  /// A task, and whose call it is.
  struct Entry {
    std::unique_ptr<const comm::QueuedCall> call;
    Task task;
  };

  comm::QueuedCall::Queue calls;
  std::mutex mutex;
  std::condition_variable work_there;
  std::condition_variable idle;
  std::deque<Entry> queue;          // guarded by mutex
  std::thread executor;             // guarded by mutex
  bool running = false;             // guarded by mutex; a thread runs a task
  bool closed = false;              // guarded by mutex
  std::atomic<uint64_t> issued{0};  // written under mutex
  std::atomic<int> unended{0};      // collectives; waiters learn of an end by a Work's mutex

  void check_open() const {
    if (closed) refuse_after_shutdown(calls.group);
  }

  /// Runs the first task of the queue without the lock.
  void run_first(std::unique_lock<std::mutex>& lock) {
    Entry first = std::move(queue.front());
    queue.pop_front();
    lock.unlock();
    {
      const comm::QueuedCall::Run run(*first.call);
      first.task();
    }
    first.task = nullptr;  // destroyed without the lock, because its contents may lock too
    first.call.reset();
    lock.lock();
  }

  /// Queues a call of this thread and returns its number. Needs mutex.
  uint64_t add(Task task) {
    // What may throw comes first.
    const uint64_t number = issued.load(std::memory_order_relaxed) + 1;
    queue.push_back({std::make_unique<comm::QueuedCall>(calls, number), std::move(task)});
    return next_number();
  }

  uint64_t next_number() {
    unended.fetch_add(1, std::memory_order_relaxed);
    return issued.fetch_add(1, std::memory_order_relaxed) + 1;
  }

  void execute();
  static void start(const std::shared_ptr<State>& state);
};

namespace {

/// The State whose executor is this thread; null if there is none.
thread_local const void* executor_of = nullptr;

}  // namespace

void CollectiveQueue::State::execute() {
  executor_of = this;
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) {
    work_there.wait(lock, [this] { return queue.empty() ? closed : !running; });
    if (queue.empty()) return;
    running = true;
    run_first(lock);
    running = false;
    if (queue.empty()) idle.notify_all();
  }
}

/// Starts the executor if there is none. Needs mutex.
void CollectiveQueue::State::start(const std::shared_ptr<State>& state) {
  if (state->executor.joinable()) return;
  state->executor =
      comm::start_thread("farandole", "asynchronous collectives", [state] { state->execute(); });
}

CollectiveQueue::CollectiveQueue(std::string group)
    : state_(std::make_shared<State>(std::move(group))) {}

CollectiveQueue::~CollectiveQueue() {
  if (in_creator()) {
    close();
  } else {
    // The executor does not exist in the child, and may have held the mutex at the fork.
    new std::shared_ptr<State>(std::move(state_));
  }
}

uint64_t CollectiveQueue::try_begin() {
  State& state = *state_;
  std::unique_lock<std::mutex> lock(state.mutex);
  state.check_open();
  if (executor_of == &state) {
    while (!state.queue.empty()) state.run_first(lock);
    return state.next_number();
  }
  if (state.running || !state.queue.empty()) return 0;
  state.running = true;
  return state.next_number();
}

uint64_t CollectiveQueue::number_elsewhere() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->check_open();
  return state_->issued.fetch_add(1, std::memory_order_relaxed) + 1;
}

void CollectiveQueue::end() {
  State& state = *state_;
  collective_ended();
  if (executor_of == &state) return;  // execute() keeps the turn
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.running = false;
  if (!state.queue.empty()) {
    state.work_there.notify_one();
  } else if (state.closed) {
    state.idle.notify_all();
  }
}

uint64_t CollectiveQueue::push(Task task) {
  State& state = *state_;
  std::unique_lock<std::mutex> lock(state.mutex);
  state.check_open();
  if (executor_of == &state) {
    // This is a callback of a task that has just ended, and it may wait for this task, which no
    // other thread would run.
    const uint64_t number = state.add(std::move(task));
    while (!state.queue.empty()) state.run_first(lock);
    return number;
  }
  State::start(state_);
  const uint64_t number = state.add(std::move(task));
  if (!state.running) state.work_there.notify_one();
  return number;
}

void CollectiveQueue::start() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->check_open();
  State::start(state_);
}

uint64_t CollectiveQueue::issued() const { return state_->issued.load(std::memory_order_relaxed); }

void CollectiveQueue::collective_ended() {
  state_->unended.fetch_sub(1, std::memory_order_relaxed);
}

bool CollectiveQueue::busy() const { return state_->unended.load(std::memory_order_relaxed) != 0; }

void CollectiveQueue::close(std::chrono::milliseconds grace) {
  State& state = *state_;
  std::unique_lock<std::mutex> lock(state.mutex);
  std::thread executor = std::move(state.executor);
  if (state.closed && !executor.joinable()) return;  // it was closed before
  state.closed = true;
  state.work_there.notify_all();
  if (executor.get_id() == std::this_thread::get_id()) {
    executor.detach();
    return;
  }
  const bool done =
      state.idle.wait_for(lock, grace, [&state] { return !state.running && state.queue.empty(); });
  lock.unlock();
  if (!executor.joinable()) return;
  if (done) {
    executor.join();
  } else {
    executor.detach();
  }
}

void CollectiveQueue::check_open() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->check_open();
}

}  // namespace farandole
