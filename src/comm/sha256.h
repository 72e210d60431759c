// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "farandole/export.h"

namespace farandole::comm {

/// 256 bits.
using Digest = std::array<unsigned char, 32>;

/// SHA-256 (FIPS 180-4). Written here because neither torch's wheels nor this library link a
/// cryptographic one; it hashes a few hundred bytes for each new connection.
class FARANDOLE_API Sha256 {
 public:
  void update(const void* data, size_t bytes);
  /// Of all that was given. Ends the use of this object.
  Digest finish();

 private:
  static constexpr size_t kBlock = 64;

  void process(const unsigned char* block);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, kBlock> pending_{};
  uint64_t bytes_ = 0;
};

/// HMAC-SHA256 (RFC 2104).
FARANDOLE_API Digest hmac_sha256(std::string_view key, std::string_view text);

/// A code that only those who know `secret` can make for these parts. Codes of other purposes or
/// other parts differ: each part is preceded by its length. As job_secret.code() of Python.
FARANDOLE_API Digest code_of(std::string_view secret, std::string_view purpose,
                             std::initializer_list<std::string_view> parts);

/// Whether both are the same. The time does not tell how many bytes are.
FARANDOLE_API bool equal_in_constant_time(const Digest& a, const Digest& b);

/// 64 hexadecimal digits.
FARANDOLE_API std::string hex_of(const Digest& digest);

}  // namespace farandole::comm
