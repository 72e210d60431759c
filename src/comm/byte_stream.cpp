// SPDX-License-Identifier: Apache-2.0
#include "comm/byte_stream.h"

#include <poll.h>

#include <algorithm>
#include <utility>

namespace farandole::comm {

uint64_t ByteStream::send(const void* data, size_t bytes) {
  if (bytes > 0) outgoing_.push_back({static_cast<char*>(const_cast<void*>(data)), bytes});
  return queued_to_send_ += bytes;
}

uint64_t ByteStream::receive(void* data, size_t bytes) {
  if (bytes > 0) incoming_.push_back({static_cast<char*>(data), bytes});
  return queued_to_receive_ += bytes;
}

short ByteStream::events() const {
  if (state_ != State::kOpen) return 0;
  return static_cast<short>((outgoing_.empty() ? 0 : POLLOUT) | (incoming_.empty() ? 0 : POLLIN));
}

void ByteStream::note_sent(size_t bytes) {
  sent_ += bytes;
  advance(outgoing_, bytes);
}

void ByteStream::note_received(size_t bytes) {
  received_ += bytes;
  advance(incoming_, bytes);
}

void ByteStream::end(State state, std::string failure) {
  state_ = state;
  failure_ = std::move(failure);
}

void ByteStream::advance(std::deque<Range>& queue, size_t bytes) {
  while (bytes > 0) {
    Range& first = queue.front();
    const size_t taken = std::min(bytes, first.bytes);
    first.data += taken;
    first.bytes -= taken;
    bytes -= taken;
    if (first.bytes == 0) queue.pop_front();
  }
}

}  // namespace farandole::comm
