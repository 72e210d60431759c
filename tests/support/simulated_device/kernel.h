// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/simulated_device/launch_order.h"
#include "support/simulated_device/race_detector.h"

namespace farandole::sim {

/// What a stream runs. One that a graph holds runs again at each replay.
struct Kernel {
  std::string name;
  std::vector<Access> accesses;        ///< all that it touches of the memory of devices
  std::function<void()> body;          ///< null: it does nothing
  std::shared_ptr<LaunchOrder> order;  ///< null: it has that of its stream alone
};

}  // namespace farandole::sim
