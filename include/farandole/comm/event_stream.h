// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "farandole/comm/events.h"
#include "farandole/export.h"

namespace farandole::comm {

/// What a span of the stream shows. Layers emit those up to kGarbage, and what stands on them the
/// others.
enum class SpanKind : uint8_t {
  kCollective,  ///< an Event
  kBackward,    ///< number: of the backward; bytes: of gradients that were copied into buckets
  kExposed,     ///< what a backward waits for after its compute; peer: the last rank to end its own
  kBucket,      ///< number: of the bucket; begin: ready; middle: complete; end: reduced
  kRange,       ///< name: what at::RecordFunction or a program calls it; number: of a wait for a
                ///< DataLoader, its workers + 1, or 0 if that is not known
  kGarbage,     ///< number: the generation that Python's collector looked at
  kStep,        ///< number: of the step; name: its mode
};

/// A part of a thread's time. Times are now_ns(); 0 stands for one that is not known.
struct Span {
  SpanKind kind = SpanKind::kRange;
  OpKind operation = OpKind::kBarrier;  ///< of a kCollective
  int16_t peer = -1;                    ///< kCollective: Event::latest_rank
  uint32_t name = 0;                    ///< name_id(); kCollective: Event::group
  uint64_t number = 0;                  ///< kCollective: Event::sequence
  uint64_t bytes = 0;
  uint64_t begin_ns = 0;
  uint64_t middle_ns = 0;  ///< kCollective: Event::arrived_ns
  uint64_t end_ns = 0;
};

/// Spans that a thread keeps for a reader that is late; more of them are counted and lost.
constexpr size_t kSpansPerThread = 8192;

/// Whether a reader wants spans. Any thread, at the cost of a plain load.
inline bool is_streaming();
/// From now on emit() keeps spans. What earlier readers left is dropped. In a forked child nothing
/// is kept until it calls this itself.
FARANDOLE_API void start_stream();
FARANDOLE_API void stop_stream();

/// Appends to the calling thread's queue, if a reader wants it. Wait-free; no allocation after a
/// thread's first span.
FARANDOLE_API void emit(const Span& span);
/// Emits a collective, whose times are event_ticks().
void emit(const Event& event);

/// What one thread has emitted, oldest end first.
struct ThreadSpans {
  int64_t thread = 0;  ///< as the kernel numbers it
  std::vector<Span> spans;
};
struct Drained {
  std::vector<ThreadSpans> threads;
  uint64_t lost = 0;  ///< spans for which there was no space
};
/// All that was emitted since the last call. One reader at a time, while threads emit.
FARANDOLE_API Drained drain_stream();

/// A small number for a text, the same for equal texts in this process. Any thread; cheap for texts
/// that the thread has asked for before.
FARANDOLE_API uint32_t name_id(std::string_view name);
FARANDOLE_API std::string name_of_id(uint32_t id);

namespace detail {
FARANDOLE_API extern std::atomic<bool> is_streaming;
}  // namespace detail

inline bool is_streaming() { return detail::is_streaming.load(std::memory_order_relaxed); }

}  // namespace farandole::comm
