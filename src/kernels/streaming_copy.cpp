// SPDX-License-Identifier: Apache-2.0
#include "kernels/streaming_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace farandole {

#ifdef __SSE2__  // every x86-64; plain loops cannot ask for such stores

void streaming_copy(void* to, const void* from, size_t bytes) {
  constexpr size_t kLine = 64;
  constexpr size_t kWords = kLine / sizeof(__m128i);
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const size_t misplaced = reinterpret_cast<uintptr_t>(to) % kLine;
  const size_t head = std::min(bytes, (kLine - misplaced) % kLine);
  std::memcpy(target, source, head);  // a part of a line is better written through the cache
  size_t done = head;
  for (; done + kLine <= bytes; done += kLine) {
    __m128i words[kWords];
    std::memcpy(words, source + done, kLine);
    for (size_t i = 0; i < kWords; ++i) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(target + done) + i, words[i]);
    }
  }
  std::memcpy(target + done, source + done, bytes - done);
}

void end_streaming_copies() { _mm_sfence(); }

#else

void streaming_copy(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
void end_streaming_copies() {}

#endif

}  // namespace farandole
