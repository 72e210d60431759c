// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "ddp/arrival_streams.h"

namespace farandole {

/// Gradients of accelerators that wait to be copied into their bucket together: a copy each would
/// cost the host a launch for each parameter, all of a bucket cost a few.
///
/// Threads: one call at a time. Streams: gradients are copied on the current stream of their
/// device, which waits for those on which they arrived.
class DeferredMoves {
 public:
  /// Of `buckets` buckets; nothing may be left from before.
  void begin(size_t buckets) { of_bucket_.assign(buckets, {}); }
  /// slot = scale * gradient, when finish() is called. `gradient` is kept until then; it arrives on
  /// the current stream.
  void add(size_t bucket, const at::Tensor& gradient, const at::Tensor& slot, double scale);
  /// Whether something of the bucket waits.
  bool has(size_t bucket) const {
    return bucket < of_bucket_.size() && !of_bucket_[bucket].moves.empty();
  }
  /// Copies what waits for the bucket.
  void finish(size_t bucket);
  /// Copies all that waits, unseen by the version counters of the slots, which still tell whether
  /// the program has written there.
  void finish_all();

 private:
  struct Move {
    at::Tensor gradient;
    at::Tensor slot;
    double scale;
  };
  struct Bucket {
    std::vector<Move> moves;
    ArrivalStreams streams;  ///< of their gradients
  };
  std::vector<Bucket> of_bucket_;
};

}  // namespace farandole
