// SPDX-License-Identifier: Apache-2.0
#include "ddp/gradient_streams.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace farandole {

void GradientStreams::note(size_t bucket, c10::Device device) {
  if (device.is_cpu()) return;
  std::vector<c10::Stream>& streams = of_bucket_[bucket];
  const c10::Stream current = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  if (std::find(streams.begin(), streams.end(), current) == streams.end()) {
    streams.push_back(current);
  }
}

void GradientStreams::join(size_t bucket) const {
  for (const c10::Stream& stream : of_bucket_[bucket]) {
    const c10::impl::VirtualGuardImpl devices(stream.device_type());
    const c10::Stream current = devices.getStream(stream.device());
    if (stream == current) continue;
    c10::Event gradients_there(stream.device_type());
    gradients_there.record(stream);
    gradients_there.block(current);
  }
}

}  // namespace farandole
