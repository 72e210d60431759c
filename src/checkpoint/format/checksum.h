// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace farandole::checkpoint {

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4) of `bytes` bytes, going on from `before`, the
/// checksum of what came before them. With the CPU's instruction for it where there is one. Any
/// thread.
uint32_t crc32c(const void* data, size_t bytes, uint32_t before = 0);

}  // namespace farandole::checkpoint
