// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace farandole::comm::shm {

constexpr size_t kCacheLine = 64;
/// Neighbours that different ranks write stand two lines apart: prefetchers fetch lines in pairs.
constexpr size_t kNoSharing = 2 * kCacheLine;

}  // namespace farandole::comm::shm
