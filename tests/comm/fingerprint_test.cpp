// SPDX-License-Identifier: Apache-2.0
#include "farandole/comm/fingerprint.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

namespace farandole::comm {
namespace {

using Pair = std::pair<uint64_t, uint64_t>;

Pair of(std::string_view text) {
  const Fingerprint found = fingerprint_of(text);
  return {found.first, found.second};
}

/// What the reference implementation prints.
TEST(Fingerprint, IsMurmurHash3) {
  EXPECT_EQ(of(""), Pair(0, 0));
  EXPECT_EQ(of("hello"), Pair(0xcbd8a7b341bd9b02U, 0x5b1e906a48ae1d19U));
  EXPECT_EQ(of("The quick brown fox jumps over the lazy dog"),
            Pair(0xe34bbc7bbc071b6cU, 0x7a433ca9c49a9347U));
}

TEST(Fingerprint, DiffersWithEachByteAndWithTheLength) {
  std::set<Pair> found;
  size_t texts = 0;
  for (size_t bytes = 0; bytes <= 40; ++bytes) {
    std::string text(bytes, '\0');
    found.insert(of(text));
    ++texts;
    for (char& byte : text) {
      byte = 1;
      found.insert(of(text));
      byte = 0;
      ++texts;
    }
  }
  EXPECT_EQ(found.size(), texts);
}

TEST(Fingerprint, OfNumbersDependsOnTheirOrder) {
  FingerprintOfNumbers one;
  FingerprintOfNumbers other;
  one.add(uint64_t{64});
  one.add(int64_t{1024});
  other.add(int64_t{1024});
  other.add(uint64_t{64});
  EXPECT_NE(one.value(), other.value());
  FingerprintOfNumbers nested;
  nested.add(one.value());
  EXPECT_NE(nested.value(), one.value());
}

}  // namespace
}  // namespace farandole::comm
