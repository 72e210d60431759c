// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <vector>

namespace farandole {

/// The streams on which the gradients of each bucket arrived: autograd gives each parameter the
/// stream on which it was first used, so a bucket may have several, and must wait for all.
///
/// An event is recorded for each other stream when the bucket is launched, not for each gradient.
/// Buckets of the CPU have no streams. Threads: one call at a time.
class GradientStreams {
 public:
  /// A backward begins.
  void begin(size_t buckets) { of_bucket_.assign(buckets, {}); }
  /// A gradient has arrived on the current stream of `device`.
  void note(size_t bucket, c10::Device device);
  /// Makes the current stream wait for all gradients of the bucket.
  void join(size_t bucket) const;

 private:
  std::vector<std::vector<c10::Stream>> of_bucket_;
};

}  // namespace farandole
