// SPDX-License-Identifier: Apache-2.0
#include "ddp/arrival_streams.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace farandole {

void ArrivalStreams::note(c10::Device device) {
  if (device.is_cpu()) return;
  const c10::Stream current = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  if (std::find(streams_.begin(), streams_.end(), current) == streams_.end()) {
    streams_.push_back(current);
  }
}

void ArrivalStreams::join() const {
  for (const c10::Stream& stream : streams_) {
    const c10::impl::VirtualGuardImpl devices(stream.device_type());
    const c10::Stream current = devices.getStream(stream.device());
    if (stream == current) continue;
    c10::Event gradients_there(stream.device_type());
    gradients_there.record(stream);
    gradients_there.block(current);
  }
}

}  // namespace farandole
