// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace farandole {

/// What the loss of the present passes of a wrapped model counts for on this rank: what
/// set_loss_weight() got, or 1. Layers that add gradients of all ranks read it in backward.
/// Threads: any.
struct PassWeight {
  std::atomic<double> value{1};
};

}  // namespace farandole
