// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "farandole/comm/communicator.h"
#include "farandole/config.h"

namespace farandole {

/// How the tensors of a group on an accelerator travel: through a communicator that works on the
/// memory of devices, or staged through host memory. The same on all ranks.
struct LaneChoice {
  bool is_staged;
  std::string why;  ///< a sentence, if it is staged
};

/// Chooses as Config::device_backend says. Automatic: staged if a rank cannot reach the memory of
/// its device otherwise, or if two ranks have one device. Collective on `host`; `device` is this
/// rank's. Throws MismatchError on all ranks if their settings differ.
LaneChoice choose_lane(comm::Communicator& host, c10::Device device, const Config& config);

}  // namespace farandole
