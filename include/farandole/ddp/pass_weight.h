// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace farandole {

/// The loss weight of a wrapped model on this rank: the last value passed to set_loss_weight(), or
/// 1 if none is set. Layers that reduce gradients across ranks read it in backward. Threads: any.
struct PassWeight {
  std::atomic<double> value{1};
};

}  // namespace farandole
