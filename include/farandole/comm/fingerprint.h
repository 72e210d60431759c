// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "farandole/export.h"

namespace farandole::comm {

/// 128 bits by which ranks find out whether they have the same of something large. What differs has
/// the same fingerprint with a chance of 2^-128, but for those who look for such a pair: see
/// comm/sha256.h for what others must not be able to make.
struct Fingerprint {
  uint64_t first = 0;
  uint64_t second = 0;

  bool operator==(const Fingerprint& other) const {
    return first == other.first && second == other.second;
  }
  bool operator!=(const Fingerprint& other) const { return !(*this == other); }
};

/// Of bytes: MurmurHash3_x64_128 with the seed 0 (Appleby, public domain). The same on every
/// machine whose integers begin with their lowest byte. Any thread.
FARANDOLE_API Fingerprint fingerprint_of(std::string_view bytes);

/// The fingerprint of a list of numbers. A list within it is preceded by its length.
class FARANDOLE_API FingerprintOfNumbers {
 public:
  void add(uint64_t number) { numbers_.push_back(number); }
  void add(int64_t number) { add(static_cast<uint64_t>(number)); }
  void add(const Fingerprint& part) {
    add(part.first);
    add(part.second);
  }
  Fingerprint value() const;

 private:
  std::vector<uint64_t> numbers_;
};

}  // namespace farandole::comm
