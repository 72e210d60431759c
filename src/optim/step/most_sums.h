// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace farandole {

/// The largest UpdateRule::sums().
inline constexpr size_t kMostSums = 4;

}  // namespace farandole
