// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

namespace farandole::comm::hosts {

inline size_t index_of(int number) { return static_cast<size_t>(number); }

/// [begin, begin + size), in elements or bytes.
struct Range {
  size_t begin;
  size_t size;
};

/// Part `index` of `parts` about equal parts of `total`; the first ones have one more.
inline Range part_of(size_t total, size_t parts, size_t index) {
  const size_t each = total / parts;
  const size_t longer = total % parts;
  return {index * each + std::min(index, longer), each + (index < longer ? 1 : 0)};
}

}  // namespace farandole::comm::hosts
