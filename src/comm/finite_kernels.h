// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace farandole {

/// The largest of words[i] & mask, 0 if there are none: of the exponents of floating-point numbers,
/// which lie under `mask`. Any thread.
uint16_t largest_exponent(const uint16_t* words, size_t count, uint16_t mask);
uint32_t largest_exponent(const uint32_t* words, size_t count, uint32_t mask);
uint64_t largest_exponent(const uint64_t* words, size_t count, uint64_t mask);

}  // namespace farandole
