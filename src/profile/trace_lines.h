// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "farandole/comm/event_stream.h"
#include "farandole/export.h"
#include "profile/trace_clock.h"

namespace farandole::profiler {

/// By how much this rank's TraceClock is behind that of rank 0, and how far this may be wrong.
struct ClockOffset {
  int64_t offset_ns = 0;
  int64_t error_ns = 0;
};

/// Whose trace it is.
struct TraceOwner {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int pid = 0;
  std::string node;  ///< "algo-1": the first host
  std::string host;
};

/// Lines of Chrome's trace format, each with ",\n" at its end. `ts` and `dur` are microseconds; ts
/// counts from the moment that the first line of a file says.
///
/// | cat, name | what | args |
/// |---|---|---|
/// | step, step | from the end of a step to that of the next | step, mode |
/// | forward, forward | of a DistributedDataParallel, of Farandole or torch | |
/// | backward, backward | synchronized; compute with the communication that it hides | backward,
/// copied_bytes |
/// | communication, exposed_communication | what it waits for afterwards | latest_rank |
/// | bucket, bucket <i> | from ready to reduced | bytes, complete_us: after ts, all ranks were
/// ready
/// |
/// | collective, all_reduce ... | on the host's thread | group, sequence, bytes, waiting_us,
/// latest_rank |
/// | optimizer, optimizer_step | one optimizer's | optimizer |
/// | data, dataloader | the loop waits for its next batch | num_workers |
/// | checkpoint, save or load | what the training waits for | |
/// | gc, gc | Python's collector of garbage | generation |
/// | annotation, <its own> | a range of the program | |
class FARANDOLE_API TraceLines {
 public:
  TraceLines(TraceOwner owner, const TraceClock& clock);

  /// The first lines of a file: whose it is, since when, and on which clock.
  std::string head(const std::optional<ClockOffset>& offset) const;
  /// Nothing for spans that others show.
  std::string line(const comm::Span& span, int64_t thread) const;
  /// Spans for which a queue had no space.
  std::string lost(uint64_t spans) const;
  /// A measurement of this moment.
  std::string measured(const ClockOffset& offset) const;

 private:
  double since_start_us(uint64_t steady_ns) const;
  std::string instant(const char* name, const char* kind, const std::string& args) const;

  const TraceOwner owner_;
  const TraceClock& clock_;
};

}  // namespace farandole::profiler
