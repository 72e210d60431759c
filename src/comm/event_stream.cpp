// SPDX-License-Identifier: Apache-2.0
// Each thread has a queue that it alone writes and the reader alone empties (Lamport 1983,
// "Specifying concurrent program modules"): `written` is released after the span that it counts,
// `read` after the span was copied, and each side acquires the other's number before it touches a
// slot. Numbers only grow; a slot is number % kSpansPerThread.
#include "farandole/comm/event_stream.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "comm/fork_safe_mutex.h"

namespace farandole::comm {

std::atomic<bool> detail::is_streaming{false};

namespace {

struct Queue {
  const int64_t thread = ::syscall(SYS_gettid);
  std::array<Span, kSpansPerThread> slots;
  std::atomic<uint64_t> written{0};
  std::atomic<uint64_t> read{0};
  std::atomic<uint64_t> lost{0};     ///< since the reader looked
  std::atomic<bool> is_over{false};  ///< its thread has ended; released after its last span
};

/// Never destroyed: threads may emit while the process exits. Guarded by fork_safe_mutex<Queues>().
struct Queues {
  std::vector<std::shared_ptr<Queue>> all;
};
Queues& queues() {
  static auto* const instance = new Queues;
  return *instance;
}

/// A thread's hold of its queue.
class OwnQueue {
 public:
  OwnQueue() {
    const std::lock_guard<std::mutex> lock(fork_safe_mutex<Queues>());
    queues().all.push_back(queue_);
  }
  ~OwnQueue() { queue_->is_over.store(true, std::memory_order_release); }
  OwnQueue(const OwnQueue&) = delete;
  OwnQueue& operator=(const OwnQueue&) = delete;
  Queue& queue() const { return *queue_; }

 private:
  const std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
};

Queue& own_queue() {
  thread_local const OwnQueue own;
  return own.queue();
}

/// Guarded by fork_safe_mutex<Names>().
struct Names {
  std::unordered_map<std::string, uint32_t> ids;
  std::vector<const std::string*> by_id;
};
Names& names() {
  static auto* const instance = new Names;
  return *instance;
}

/// Copies what is there, and counts what was lost.
void drain(Queue& queue, std::vector<Span>* spans, uint64_t* lost) {
  const uint64_t written = queue.written.load(std::memory_order_acquire);
  uint64_t number = queue.read.load(std::memory_order_relaxed);
  spans->reserve(static_cast<size_t>(written - number));
  for (; number < written; ++number) spans->push_back(queue.slots[number % kSpansPerThread]);
  queue.read.store(written, std::memory_order_release);
  *lost += queue.lost.exchange(0, std::memory_order_relaxed);
}

/// Times of collectives are ticks until now, so that their threads need not convert them.
void convert_collectives(std::vector<Span>* spans) {
  std::vector<uint64_t> ticks;
  for (const Span& span : *spans) {
    if (span.kind != SpanKind::kCollective) continue;
    for (const uint64_t time : {span.begin_ns, span.middle_ns, span.end_ns}) ticks.push_back(time);
  }
  convert_to_ns(ticks.data(), ticks.size());
  size_t next = 0;
  for (Span& span : *spans) {
    if (span.kind != SpanKind::kCollective) continue;
    span.begin_ns = ticks[next++];
    span.middle_ns = ticks[next++];
    span.end_ns = ticks[next++];
  }
}

}  // namespace

void start_stream() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, stop_stream);
  static_cast<void>(registered);
  drain_stream();
  detail::is_streaming.store(true, std::memory_order_relaxed);
}

void stop_stream() { detail::is_streaming.store(false, std::memory_order_relaxed); }

void emit(const Span& span) {
  if (!is_streaming()) return;
  Queue& queue = own_queue();
  const uint64_t number = queue.written.load(std::memory_order_relaxed);
  if (number - queue.read.load(std::memory_order_acquire) >= kSpansPerThread) {
    queue.lost.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  queue.slots[number % kSpansPerThread] = span;
  queue.written.store(number + 1, std::memory_order_release);
}

void emit(const Event& event) {
  Span span;
  span.kind = SpanKind::kCollective;
  span.operation = event.operation;
  span.peer = event.latest_rank;
  span.name = event.group;
  span.number = event.sequence;
  span.bytes = event.bytes;
  span.begin_ns = event.begin_ns;
  span.middle_ns = event.arrived_ns;
  span.end_ns = event.end_ns;
  emit(span);
}

Drained drain_stream() {
  std::vector<std::shared_ptr<Queue>> all;
  {
    const std::lock_guard<std::mutex> lock(fork_safe_mutex<Queues>());
    all = queues().all;
  }
  Drained drained;
  std::vector<Queue*> ended;
  for (const auto& queue : all) {
    if (queue->is_over.load(std::memory_order_acquire)) ended.push_back(queue.get());
    ThreadSpans of{queue->thread, {}};
    drain(*queue, &of.spans, &drained.lost);
    convert_collectives(&of.spans);
    if (!of.spans.empty()) drained.threads.push_back(std::move(of));
  }
  const std::lock_guard<std::mutex> lock(fork_safe_mutex<Queues>());
  auto& known = queues().all;
  const auto is_over = [&](const std::shared_ptr<Queue>& queue) {
    return std::find(ended.begin(), ended.end(), queue.get()) != ended.end();
  };
  known.erase(std::remove_if(known.begin(), known.end(), is_over), known.end());
  return drained;
}

uint32_t name_id(std::string_view name) {
  thread_local std::unordered_map<std::string_view, uint32_t> seen;  // of names, which stay
  const auto found = seen.find(name);
  if (found != seen.end()) return found->second;
  const std::lock_guard<std::mutex> lock(fork_safe_mutex<Names>());
  Names& known = names();
  const auto next = static_cast<uint32_t>(known.by_id.size());
  const auto [entry, is_new] = known.ids.emplace(std::string(name), next);
  if (is_new) known.by_id.push_back(&entry->first);
  seen.emplace(entry->first, entry->second);
  return entry->second;
}

std::string name_of_id(uint32_t id) {
  const std::lock_guard<std::mutex> lock(fork_safe_mutex<Names>());
  const auto& known = names().by_id;
  return id < known.size() ? *known[id] : "?";
}

}  // namespace farandole::comm
