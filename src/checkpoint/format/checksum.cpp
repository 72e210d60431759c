// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/format/checksum.h"

#include <array>
#include <cstring>

namespace farandole::checkpoint {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

using Tables = std::array<std::array<uint32_t, 256>, 8>;

/// Table k: what a byte contributes k bytes later.
Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = value;
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    for (size_t k = 1; k < tables.size(); ++k) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

/// Eight bytes at a time (Kounavis and Berry 2005, "A Systematic Approach to Building High
/// Performance, Software-based, CRC Generators").
uint32_t by_tables(const unsigned char* data, size_t bytes, uint32_t crc) {
  static const Tables tables = make_tables();
  for (; bytes >= 8; bytes -= 8, data += 8) {
    uint32_t value = 0;
    for (size_t i = 0; i < 4; ++i) {
      value ^= tables[7 - i][data[i] ^ (crc >> (8 * i) & 0xff)];
      value ^= tables[3 - i][data[4 + i]];
    }
    crc = value;
  }
  for (; bytes > 0; --bytes, ++data) crc = (crc >> 8) ^ tables[0][(crc ^ *data) & 0xff];
  return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
/// Bytes of each of three streams: one instruction waits for the one before, and three take turns.
constexpr size_t kStream = 2048;

/// What the checksum before kStream bytes contributes behind them: a linear map over its bits.
class Shift {
 public:
  Shift() {
    const std::array<unsigned char, kStream> zeros{};
    for (size_t byte = 0; byte < 4; ++byte) {
      for (uint32_t value = 0; value < 256; ++value) {
        tables_[byte][value] = by_tables(zeros.data(), zeros.size(), value << (8 * byte));
      }
    }
  }
  uint32_t operator()(uint32_t crc) const {
    return tables_[0][crc & 0xff] ^ tables_[1][crc >> 8 & 0xff] ^ tables_[2][crc >> 16 & 0xff] ^
           tables_[3][crc >> 24];
  }

 private:
  std::array<std::array<uint32_t, 256>, 4> tables_{};
};

__attribute__((target("sse4.2"))) inline uint64_t step(uint64_t crc, const unsigned char* data) {
  unsigned long long word = 0;
  std::memcpy(&word, data, sizeof(word));
  return __builtin_ia32_crc32di(crc, word);
}

__attribute__((target("sse4.2"))) uint32_t by_instruction(const unsigned char* data, size_t bytes,
                                                          uint32_t crc) {
  static const Shift behind;
  for (; bytes >= 3 * kStream; bytes -= 3 * kStream, data += 3 * kStream) {
    uint64_t first = crc;
    uint64_t second = 0;
    uint64_t third = 0;
    for (size_t i = 0; i < kStream; i += 8) {
      first = step(first, data + i);
      second = step(second, data + kStream + i);
      third = step(third, data + 2 * kStream + i);
    }
    crc = behind(behind(static_cast<uint32_t>(first)) ^ static_cast<uint32_t>(second)) ^
          static_cast<uint32_t>(third);
  }
  uint64_t wide = crc;
  for (; bytes >= 8; bytes -= 8, data += 8) wide = step(wide, data);
  crc = static_cast<uint32_t>(wide);
  for (; bytes > 0; --bytes, ++data) crc = __builtin_ia32_crc32qi(crc, *data);
  return crc;
}

bool has_instruction() {
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
  return has;
}
#else
uint32_t by_instruction(const unsigned char* data, size_t bytes, uint32_t crc) {
  return by_tables(data, bytes, crc);
}
bool has_instruction() { return false; }
#endif

}  // namespace

uint32_t crc32c(const void* data, size_t bytes, uint32_t before) {
  const auto* const begin = static_cast<const unsigned char*>(data);
  const auto compute = has_instruction() ? by_instruction : by_tables;
  return ~compute(begin, bytes, ~before);
}

}  // namespace farandole::checkpoint
