// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <vector>

namespace farandole::comm::shm {

/// Something that a rank waits for: tries for at most so long, and tells whether it has come.
using Ready = std::function<bool(std::chrono::milliseconds)>;

/// Waits until `ready` is true, for which `peers` must do their part. Looks after them between two
/// tries, and throws once the wait is vain.
using Await = std::function<void(const std::vector<int>& peers, const Ready& ready)>;

}  // namespace farandole::comm::shm
