// SPDX-License-Identifier: Apache-2.0
#include "ddp/stream_use.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace farandole {

void keep_for_current_stream(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return;
  const at::Device device = tensor.device();
  tensor.record_stream(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

}  // namespace farandole
