// SPDX-License-Identifier: Apache-2.0
#include "kernels/finite_kernels.h"

#include <cstdint>

#include "farandole/error.h"
#include "kernels/target_clones.h"

namespace farandole::comm {
namespace {

/// The largest of words[i] & mask, 0 if there are none: of the exponents of floating-point numbers,
/// which lie under `mask`.
template <class Word>
FARANDOLE_INLINE Word largest_of(const Word* words, size_t count, Word mask) {
  Word largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto exponent = static_cast<Word>(words[i] & mask);
    largest = largest < exponent ? exponent : largest;
  }
  return largest;
}

// A plain function for each loop: see target_clones.h.
FARANDOLE_CLONES uint16_t largest_of_16(const uint16_t* words, size_t count, uint16_t mask) {
  return largest_of(words, count, mask);
}
FARANDOLE_CLONES uint32_t largest_of_32(const uint32_t* words, size_t count, uint32_t mask) {
  return largest_of(words, count, mask);
}
FARANDOLE_CLONES uint64_t largest_of_64(const uint64_t* words, size_t count, uint64_t mask) {
  return largest_of(words, count, mask);
}

uint16_t largest_exponent(const uint16_t* words, size_t count, uint16_t mask) {
  return largest_of_16(words, count, mask);
}
uint32_t largest_exponent(const uint32_t* words, size_t count, uint32_t mask) {
  return largest_of_32(words, count, mask);
}
uint64_t largest_exponent(const uint64_t* words, size_t count, uint64_t mask) {
  return largest_of_64(words, count, mask);
}

/// The least h with 2^h >= terms: a sum of them has an exponent of at most h more.
unsigned headroom_of(size_t terms) {
  unsigned headroom = 0;
  while ((size_t{1} << headroom) < terms) ++headroom;
  return headroom;
}

/// All bits of the exponent are set in NaN and Inf alone; its lowest bit is `unit`. From the end
/// on, a block at a time: what has just been written upwards has its end in the caches still, and a
/// pass from its beginning would drive that out before it came to it.
template <class Word>
bool are_below(const void* data, size_t count, Word mask, Word unit, unsigned headroom) {
  constexpr size_t kBlock = (size_t{64} << 10) / sizeof(Word);
  const auto* words = static_cast<const Word*>(data);
  const auto limit = static_cast<Word>(mask - headroom * unit);
  while (count > 0) {
    const size_t length = count % kBlock == 0 ? kBlock : count % kBlock;
    count -= length;
    if (largest_exponent(words + count, length, mask) >= limit) return false;
  }
  return true;
}

}  // namespace

bool are_finite(const void* data, size_t count, DataType dtype, size_t terms) {
  const unsigned headroom = headroom_of(terms);
  switch (dtype) {
    case DataType::kFloat64:
      return are_below<uint64_t>(data, count, 0x7ff0000000000000U, uint64_t{1} << 52, headroom);
    case DataType::kFloat32:
      return are_below<uint32_t>(data, count, 0x7f800000U, uint32_t{1} << 23, headroom);
    case DataType::kBFloat16:
      return are_below<uint16_t>(data, count, 0x7f80U, uint16_t{1} << 7, headroom);
    case DataType::kFloat16:  // whose sums fit into float32
      return are_below<uint16_t>(data, count, 0x7c00U, uint16_t{1} << 10, 0);
    default:
      throw InvalidArgument(
          "finite-dtype", "are_finite() got a dtype that is not a floating-point dtype.",
          "values of other dtypes are always finite.", "call it for floating-point tensors only.");
  }
}

}  // namespace farandole::comm
