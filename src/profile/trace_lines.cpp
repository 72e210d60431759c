// SPDX-License-Identifier: Apache-2.0
#include "profile/trace_lines.h"

#include <array>
#include <cstdio>
#include <utility>

#include "checkpoint/format/json.h"
#include "profile/range_names.h"

namespace farandole::profiler {
namespace {

using comm::Span;
using comm::SpanKind;

std::string quoted(const std::string& text) { return checkpoint::Json(text).dump(); }

/// Microseconds with the nanoseconds.
std::string decimal(double value) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.3f", value);
  return text.data();
}

/// A member of args, with the comma before it.
std::string member(const char* name, const std::string& value) {
  return std::string(",\"") + name + "\":" + value;
}

double between_us(uint64_t from_ns, uint64_t to_ns) {
  return to_ns > from_ns ? static_cast<double>(to_ns - from_ns) / 1e3 : 0;
}

/// What a line says beside its times.
struct Label {
  std::string category;
  std::string name;
  std::string args;  ///< members, each with a comma before it
};

Label label_of_collective(const Span& span) {
  std::string args = member("group", quoted(comm::name_of_group(span.name))) +
                     member("sequence", std::to_string(span.number)) +
                     member("bytes", std::to_string(span.bytes)) +
                     member("waiting_us", decimal(between_us(span.begin_ns, span.middle_ns)));
  if (span.peer >= 0) args += member("latest_rank", std::to_string(span.peer));
  return {"collective", comm::name_of(span.operation), std::move(args)};
}

Label label_of_bucket(const Span& span) {
  std::string args = member("bytes", std::to_string(span.bytes));
  if (span.middle_ns != 0) {
    args += member("complete_us", decimal(between_us(span.begin_ns, span.middle_ns)));
  }
  return {"bucket", "bucket " + std::to_string(span.number), std::move(args)};
}

Label label_of(const Span& span) {
  switch (span.kind) {
    case SpanKind::kCollective:
      return label_of_collective(span);
    case SpanKind::kBackward:
      return {"backward", "backward",
              member("backward", std::to_string(span.number)) +
                  member("copied_bytes", std::to_string(span.bytes))};
    case SpanKind::kExposed:
      return {"communication", "exposed_communication",
              span.peer >= 0 ? member("latest_rank", std::to_string(span.peer)) : ""};
    case SpanKind::kBucket:
      return label_of_bucket(span);
    case SpanKind::kGarbage:
      return {"gc", "gc", member("generation", std::to_string(span.number))};
    case SpanKind::kStep:
      return {"step", "step",
              member("step", std::to_string(span.number)) +
                  member("mode", quoted(comm::name_of_id(span.name)))};
    case SpanKind::kRange:
      break;
  }
  const RangeLabel range = label_of_range(comm::name_of_id(span.name));
  std::string args;
  if (!range.optimizer.empty()) args = member("optimizer", quoted(range.optimizer));
  if (range.category == "data" && span.number > 0) {
    args = member("num_workers", std::to_string(span.number - 1));
  }
  return {range.category, range.name, std::move(args)};
}

}  // namespace

TraceLines::TraceLines(TraceOwner owner, const TraceClock& clock)
    : owner_(std::move(owner)), clock_(clock) {}

std::string TraceLines::head(const std::optional<ClockOffset>& offset) const {
  const std::string pid = ",\"ph\":\"M\",\"pid\":" + std::to_string(owner_.pid) + ",\"args\":{";
  std::string args = "\"rank\":" + std::to_string(owner_.rank) +
                     member("world_size", std::to_string(owner_.world_size)) +
                     member("local_rank", std::to_string(owner_.local_rank)) +
                     member("node", quoted(owner_.node)) + member("host", quoted(owner_.host));
  if (offset) {
    args += member("clock_offset_us", decimal(static_cast<double>(offset->offset_ns) / 1e3)) +
            member("clock_error_us", decimal(static_cast<double>(offset->error_ns) / 1e3));
  }
  return "{\"name\":\"process_name\"" + pid + "\"name\":\"rank " + std::to_string(owner_.rank) +
         "\"" +
         member("start_time_since_epoch_in_micros", std::to_string(clock_.start_ns() / 1000)) +
         "}},\n{\"name\":\"farandole\"" + pid + args + "}},\n";
}

std::string TraceLines::line(const Span& span, int64_t thread) const {
  const Label label = label_of(span);
  if (label.category.empty()) return "";
  const std::string args = label.args.empty() ? "" : label.args.substr(1);
  return "{\"name\":" + quoted(label.name) + ",\"cat\":\"" + label.category +
         "\",\"ph\":\"X\",\"ts\":" + decimal(since_start_us(span.begin_ns)) +
         ",\"dur\":" + decimal(between_us(span.begin_ns, span.end_ns)) +
         ",\"pid\":" + std::to_string(owner_.pid) + ",\"tid\":" + std::to_string(thread) +
         ",\"args\":{" + args + "}},\n";
}

std::string TraceLines::lost(uint64_t spans) const {
  return instant("lost", "i", "\"events\":" + std::to_string(spans));
}

std::string TraceLines::measured(const ClockOffset& offset) const {
  return instant("clock", "C",
                 "\"offset_us\":" + decimal(static_cast<double>(offset.offset_ns) / 1e3) +
                     member("error_us", decimal(static_cast<double>(offset.error_ns) / 1e3)));
}

std::string TraceLines::instant(const char* name, const char* kind, const std::string& args) const {
  return std::string("{\"name\":\"") + name + "\",\"ph\":\"" + kind +
         "\",\"ts\":" + decimal(since_start_us(comm::now_ns())) +
         ",\"pid\":" + std::to_string(owner_.pid) + ",\"args\":{" + args + "}},\n";
}

double TraceLines::since_start_us(uint64_t steady_ns) const {
  const int64_t start_us = clock_.start_ns() / 1000;
  return static_cast<double>(clock_.at(steady_ns) - start_us * 1000) / 1e3;
}

}  // namespace farandole::profiler
