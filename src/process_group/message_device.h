// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace farandole {

/// Where a group takes small messages from: the CPU if it serves it, else the first device that it
/// serves.
c10::Device message_device(c10d::ProcessGroup& group);

}  // namespace farandole
