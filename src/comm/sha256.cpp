// SPDX-License-Identifier: Apache-2.0
#include "comm/sha256.h"

#include <algorithm>
#include <cstring>

namespace farandole::comm {
namespace {

constexpr std::array<uint32_t, 64> kRounds{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t rotated(uint32_t word, int bits) { return (word >> bits) | (word << (32 - bits)); }

uint32_t word_at(const unsigned char* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 |
         uint32_t{bytes[3]};
}

template <class Word>
void put_big_endian(Word word, unsigned char* bytes) {
  for (size_t i = 0; i < sizeof(Word); ++i) {
    bytes[i] = static_cast<unsigned char>(word >> (8 * (sizeof(Word) - 1 - i)));
  }
}

void update(Sha256& hash, std::string_view text) { hash.update(text.data(), text.size()); }

}  // namespace

void Sha256::update(const void* data, size_t bytes) {
  const auto* next = static_cast<const unsigned char*>(data);
  while (bytes > 0) {
    const size_t filled = bytes_ % kBlock;
    const size_t taken = std::min(bytes, kBlock - filled);
    std::memcpy(pending_.data() + filled, next, taken);
    next += taken;
    bytes -= taken;
    bytes_ += taken;
    if (filled + taken == kBlock) process(pending_.data());
  }
}

Digest Sha256::finish() {
  std::array<unsigned char, kBlock> end{0x80};
  std::array<unsigned char, 8> bits{};
  put_big_endian(bytes_ * 8, bits.data());
  const size_t filled = bytes_ % kBlock;
  update(end.data(), (filled < kBlock - bits.size() ? kBlock : 2 * kBlock) - bits.size() - filled);
  update(bits.data(), bits.size());
  Digest digest{};
  for (size_t i = 0; i < state_.size(); ++i) put_big_endian(state_[i], digest.data() + 4 * i);
  return digest;
}

void Sha256::process(const unsigned char* block) {
  std::array<uint32_t, 64> words{};
  for (size_t i = 0; i < 16; ++i) words[i] = word_at(block + 4 * i);
  for (size_t i = 16; i < words.size(); ++i) {
    const uint32_t before = words[i - 15];
    const uint32_t last = words[i - 2];
    words[i] = words[i - 16] + words[i - 7] +
               (rotated(before, 7) ^ rotated(before, 18) ^ (before >> 3)) +
               (rotated(last, 17) ^ rotated(last, 19) ^ (last >> 10));
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t i = 0; i < words.size(); ++i) {
    const uint32_t first = h + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) +
                           ((e & f) ^ (~e & g)) + kRounds[i] + words[i];
    const uint32_t second =
        (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + second;
  }
  const std::array<uint32_t, 8> added{a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < state_.size(); ++i) state_[i] += added[i];
}

Digest hmac_sha256(std::string_view key, std::string_view text) {
  std::array<unsigned char, 64> padded{};
  if (key.size() > padded.size()) {
    Sha256 hash;
    update(hash, key);
    const Digest digest = hash.finish();
    std::copy(digest.begin(), digest.end(), padded.begin());
  } else {
    std::copy(key.begin(), key.end(), padded.begin());
  }
  const auto begun = [&](unsigned char pad) {
    std::array<unsigned char, 64> block{};
    for (size_t i = 0; i < block.size(); ++i) {
      block[i] = static_cast<unsigned char>(padded[i] ^ pad);
    }
    Sha256 hash;
    hash.update(block.data(), block.size());
    return hash;
  };
  Sha256 inner = begun(0x36);
  update(inner, text);
  const Digest digest = inner.finish();
  Sha256 outer = begun(0x5c);
  outer.update(digest.data(), digest.size());
  return outer.finish();
}

Digest code_of(std::string_view secret, std::string_view purpose,
               std::initializer_list<std::string_view> parts) {
  std::string text;
  const auto add = [&](std::string_view part) {
    for (size_t i = 0; i < 8; ++i) {
      text.push_back(static_cast<char>(uint64_t{part.size()} >> (8 * i)));
    }
    text.append(part);
  };
  add(purpose);
  for (const std::string_view part : parts) add(part);
  return hmac_sha256(secret, text);
}

bool equal_in_constant_time(const Digest& a, const Digest& b) {
  volatile unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference = difference | (a[i] ^ b[i]);
  return difference == 0;
}

std::string hex_of(const Digest& digest) {
  std::string text;
  for (const unsigned char byte : digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace farandole::comm
