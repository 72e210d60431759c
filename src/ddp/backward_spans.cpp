// SPDX-License-Identifier: Apache-2.0
#include "ddp/backward_spans.h"

#include "farandole/comm/event_stream.h"

namespace farandole {

using comm::Span;
using comm::SpanKind;

void emit_backward(const BackwardStats& stats) {
  if (!comm::is_streaming()) return;
  Span backward;
  backward.kind = SpanKind::kBackward;
  backward.number = stats.backward;
  backward.bytes = static_cast<uint64_t>(stats.copied_bytes);
  backward.begin_ns = stats.begin_ns;
  backward.end_ns = stats.end_ns;
  comm::emit(backward);
  Span exposed;
  exposed.kind = SpanKind::kExposed;
  exposed.peer = static_cast<int16_t>(stats.latest_rank);
  exposed.begin_ns = stats.end_ns;
  exposed.end_ns = stats.finish_ns;
  comm::emit(exposed);
  for (size_t i = 0; i < stats.buckets.size(); ++i) {
    const BackwardStats::Bucket& of = stats.buckets[i];
    if (of.ready_ns == 0 || of.finish_ns == 0) continue;  // it was not reduced on this rank's host
    Span bucket;
    bucket.kind = SpanKind::kBucket;
    bucket.number = i;
    bucket.bytes = static_cast<uint64_t>(of.bytes);
    bucket.begin_ns = of.ready_ns;
    bucket.middle_ns = of.complete_ns;
    bucket.end_ns = of.finish_ns;
    comm::emit(bucket);
  }
}

}  // namespace farandole
