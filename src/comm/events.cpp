// SPDX-License-Identifier: Apache-2.0
#include "farandole/comm/events.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>

#include "comm/fork_safe_mutex.h"
#include "farandole/comm/event_stream.h"

namespace farandole::comm {
namespace {

constexpr size_t kEventWords = sizeof(Event) / sizeof(uint64_t);
static_assert(sizeof(Event) == kEventWords * sizeof(uint64_t));

/// One event behind a sequence lock: `version` is odd while the words change. Words are atomic
/// (relaxed) so that reading them while they change is defined; fences order them against `version`
/// (Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012).
struct Slot {
  std::atomic<uint64_t> version{0};
  std::array<std::atomic<uint64_t>, kEventWords> words{};
};

/// The events of one thread. Only that thread writes.
struct Ring {
  std::array<Slot, kEventsPerThread> slots;
  std::atomic<uint64_t> written{0};
};

/// All rings. Those of ended threads are kept too, up to a number of them.
/// Never destroyed: threads may record while the process exits.
/// Guarded by fork_safe_mutex<Rings>().
struct Rings {
  std::vector<std::shared_ptr<Ring>> all;
  std::vector<std::string> groups;  ///< by group id
};
Rings& rings() {
  static auto* const instance = new Rings;
  return *instance;
}

/// Rings of ended threads that are kept for reading; older ones are dropped.
constexpr size_t kEndedRings = 8;

std::shared_ptr<Ring> new_ring() {
  auto ring = std::make_shared<Ring>();
  Rings& known = rings();
  const std::lock_guard<std::mutex> lock(fork_safe_mutex<Rings>());
  size_t ended = 0;
  for (size_t i = known.all.size(); i-- > 0;) {
    const bool is_ended = known.all[i].use_count() == 1;
    if (is_ended && ++ended > kEndedRings) {
      known.all.erase(known.all.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  known.all.push_back(ring);
  return ring;
}

Ring& own_ring() {
  thread_local const std::shared_ptr<Ring> ring = new_ring();
  return *ring;
}

/// Whether the kernel keeps time by the time stamp counter: then it is constant and the same on all
/// cores.
bool kernel_trusts_tsc() {
#if defined(__x86_64__)
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string source;
  return file >> source && source == "tsc";
#else
  return false;
#endif
}

const bool uses_tsc = kernel_trusts_tsc();

/// One moment on both clocks.
struct Anchor {
  uint64_t ticks = event_ticks();
  uint64_t ns = now_ns();
};
const Anchor at_load;

/// Ticks as nanoseconds: a straight line through two moments on both clocks.
uint64_t to_ns(uint64_t ticks, const Anchor& now) {
  const double slope = static_cast<double>(now.ns - at_load.ns) /
                       static_cast<double>(std::max<uint64_t>(now.ticks - at_load.ticks, 1));
  const auto since = static_cast<double>(static_cast<int64_t>(ticks - at_load.ticks));
  return at_load.ns + static_cast<uint64_t>(static_cast<int64_t>(since * slope));
}

bool read(const Slot& slot, Event* event) {
  const uint64_t before = slot.version.load(std::memory_order_acquire);
  if (before % 2 != 0) return false;
  std::array<uint64_t, kEventWords> words;
  // Acquire loads instead of a fence: race detectors understand them.
  for (size_t i = 0; i < kEventWords; ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
  if (slot.version.load(std::memory_order_relaxed) != before) return false;
  std::memcpy(static_cast<void*>(event), words.data(), sizeof(*event));
  return true;
}

void read_all(const Ring& ring, std::vector<Event>* events) {
  const uint64_t written = ring.written.load(std::memory_order_acquire);
  const uint64_t kept = std::min<uint64_t>(written, kEventsPerThread);
  for (uint64_t i = written - kept; i < written; ++i) {
    Event event;
    if (read(ring.slots[i % kEventsPerThread], &event)) events->push_back(event);
  }
}

}  // namespace

void record(const Event& event) {
  if (is_streaming()) emit(event);
  Ring& ring = own_ring();
  const uint64_t index = ring.written.load(std::memory_order_relaxed);
  Slot& slot = ring.slots[index % kEventsPerThread];
  std::array<uint64_t, kEventWords> words;
  std::memcpy(words.data(), &event, sizeof(event));
  const uint64_t version = slot.version.load(std::memory_order_relaxed);
  slot.version.store(version + 1, std::memory_order_relaxed);
  // Release stores: a reader that sees a new word also sees the odd version before it.
  for (size_t i = 0; i < kEventWords; ++i) {
    slot.words[i].store(words[i], std::memory_order_release);
  }
  slot.version.store(version + 2, std::memory_order_release);
  ring.written.store(index + 1, std::memory_order_release);
}

std::vector<Event> recent_events(size_t limit) {
  std::vector<Event> events;
  {
    Rings& known = rings();
    const std::lock_guard<std::mutex> lock(fork_safe_mutex<Rings>());
    for (const auto& ring : known.all) read_all(*ring, &events);
  }
  const Anchor now;
  for (Event& event : events) {
    event.begin_ns = to_ns(event.begin_ns, now);
    event.arrived_ns = to_ns(event.arrived_ns, now);
    event.end_ns = to_ns(event.end_ns, now);
  }
  std::sort(events.begin(), events.end(),
            [](const Event& a, const Event& b) { return a.end_ns < b.end_ns; });
  if (events.size() > limit) {
    events.erase(events.begin(), events.end() - static_cast<std::ptrdiff_t>(limit));
  }
  return events;
}

uint32_t group_id(const std::string& name) {
  Rings& known = rings();
  const std::lock_guard<std::mutex> lock(fork_safe_mutex<Rings>());
  const auto found = std::find(known.groups.begin(), known.groups.end(), name);
  const auto id = static_cast<uint32_t>(found - known.groups.begin());
  if (found == known.groups.end()) known.groups.push_back(name);
  return id;
}

std::string name_of_group(uint32_t id) {
  const Rings& known = rings();
  const std::lock_guard<std::mutex> lock(fork_safe_mutex<Rings>());
  return id < known.groups.size() ? known.groups[id] : "?";
}

std::string describe(const Event& event) {
  const std::string group = name_of_group(event.group);
  const auto microseconds = [](uint64_t from, uint64_t to) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.1f us", static_cast<double>(to - from) / 1000.0);
    return std::string(text);
  };
  std::string text = "#" + std::to_string(event.sequence) + " " + name_of(event.operation) +
                     " in group '" + group + "': " + std::to_string(event.bytes) + " bytes, " +
                     microseconds(event.begin_ns, event.end_ns);
  if (event.latest_rank >= 0) {
    text += " (" + microseconds(event.begin_ns, event.arrived_ns) + " of it waiting for rank " +
            std::to_string(event.latest_rank) + ")";
  }
  return text;
}

uint64_t event_ticks() {
#if defined(__x86_64__)
  if (uses_tsc) return __builtin_ia32_rdtsc();
#endif
  return now_ns();
}

void convert_to_ns(uint64_t* ticks, size_t count) {
  const Anchor now;
  for (size_t i = 0; i < count; ++i) {
    if (ticks[i] != 0) ticks[i] = to_ns(ticks[i], now);
  }
}

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace farandole::comm
