// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <vector>

namespace farandole {

/// The streams on which gradients have arrived: autograd gives each parameter the stream on which
/// it was first used, so what reads several of them must wait for several streams.
///
/// An event is recorded for each other stream in join(), not for each gradient. The CPU has no
/// streams. Threads: one call at a time.
class ArrivalStreams {
 public:
  /// A gradient has arrived on the current stream of `device`.
  void note(c10::Device device);
  /// Makes the current streams wait for all that were noted.
  void join() const;

 private:
  std::vector<c10::Stream> streams_;
};

}  // namespace farandole
