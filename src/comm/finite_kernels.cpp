// SPDX-License-Identifier: Apache-2.0
#include "ddp/finite_loops.h"

#include "comm/target_clones.h"

namespace farandole {
namespace {

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

}  // namespace

uint16_t largest_exponent(const uint16_t* words, size_t count, uint16_t mask) {
  return largest_of_16(words, count, mask);
}
uint32_t largest_exponent(const uint32_t* words, size_t count, uint32_t mask) {
  return largest_of_32(words, count, mask);
}
uint64_t largest_exponent(const uint64_t* words, size_t count, uint64_t mask) {
  return largest_of_64(words, count, mask);
}

}  // namespace farandole
