// SPDX-License-Identifier: Apache-2.0
#include "farandole/comm/fingerprint.h"

#include <cstring>

namespace farandole::comm {
namespace {

constexpr uint64_t kFirst = 0x87c37b91114253d5U;
constexpr uint64_t kSecond = 0x4cf5ad432745937fU;
constexpr size_t kBlockBytes = 16;

uint64_t rotated(uint64_t x, int bits) { return (x << bits) | (x >> (64 - bits)); }
uint64_t mixed_first(uint64_t k) { return rotated(k * kFirst, 31) * kSecond; }
uint64_t mixed_second(uint64_t k) { return rotated(k * kSecond, 33) * kFirst; }

/// Each bit of the result depends on all of `x`.
uint64_t finished(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdU;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53U;
  return x ^ (x >> 33);
}

struct Block {
  uint64_t first = 0;
  uint64_t second = 0;
};

/// Of `bytes` bytes; those that are missing are 0.
Block block_at(const char* from, size_t bytes) {
  Block block;
  std::memcpy(&block, from, bytes);
  return block;
}

}  // namespace

Fingerprint fingerprint_of(std::string_view bytes) {
  uint64_t first = 0;
  uint64_t second = 0;
  const size_t whole = bytes.size() / kBlockBytes * kBlockBytes;
  for (size_t at = 0; at < whole; at += kBlockBytes) {
    const Block block = block_at(bytes.data() + at, kBlockBytes);
    first = (rotated(first ^ mixed_first(block.first), 27) + second) * 5 + 0x52dce729U;
    second = (rotated(second ^ mixed_second(block.second), 31) + first) * 5 + 0x38495ab5U;
  }
  if (whole < bytes.size()) {
    const Block rest = block_at(bytes.data() + whole, bytes.size() - whole);
    second ^= mixed_second(rest.second);
    first ^= mixed_first(rest.first);
  }
  first ^= bytes.size();
  second ^= bytes.size();
  first += second;
  second += first;
  first = finished(first);
  second = finished(second);
  first += second;
  return {first, second + first};
}

Fingerprint FingerprintOfNumbers::value() const {
  return fingerprint_of(
      {reinterpret_cast<const char*>(numbers_.data()), numbers_.size() * sizeof(uint64_t)});
}

}  // namespace farandole::comm
