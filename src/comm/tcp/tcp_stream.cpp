// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/tcp_stream.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "comm/shm/system/system_call.h"

namespace farandole::comm::tcp {
namespace {

/// Ranges that one system call takes.
constexpr size_t kRanges = 16;

}  // namespace

uint64_t TcpStream::send(const void* data, size_t bytes) {
  if (bytes > 0) outgoing_.push_back({static_cast<char*>(const_cast<void*>(data)), bytes});
  return queued_to_send_ += bytes;
}

uint64_t TcpStream::receive(void* data, size_t bytes) {
  if (bytes > 0) incoming_.push_back({static_cast<char*>(data), bytes});
  return queued_to_receive_ += bytes;
}

short TcpStream::events() const {
  if (state_ != State::kOpen) return 0;
  return static_cast<short>((outgoing_.empty() ? 0 : POLLOUT) | (incoming_.empty() ? 0 : POLLIN));
}

bool TcpStream::progress() {
  if (state_ != State::kOpen) return false;
  const bool has_sent = send_some();
  return receive_some() || has_sent;
}

bool TcpStream::send_some() {
  if (outgoing_.empty() || state_ != State::kOpen) return false;
  std::array<iovec, kRanges> parts{};
  msghdr message{};
  message.msg_iov = parts.data();
  for (const Range& range : outgoing_) {
    if (message.msg_iovlen == kRanges) break;
    parts[message.msg_iovlen++] = {range.data, range.bytes};
  }
  const ssize_t moved =
      shm::retried([&] { return ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL); });
  if (moved > 0) {
    sent_ += static_cast<uint64_t>(moved);
    advance(outgoing_, static_cast<size_t>(moved));
    return true;
  }
  if (moved < 0 && errno != EAGAIN) {
    // The peer has closed; what it sent before may still be read.
    state_ = errno == EPIPE || errno == ECONNRESET ? State::kClosed : State::kFailed;
    error_number_ = errno;
  }
  return false;
}

bool TcpStream::receive_some() {
  if (incoming_.empty() || state_ == State::kFailed) return false;
  std::array<iovec, kRanges> parts{};
  msghdr message{};
  message.msg_iov = parts.data();
  for (const Range& range : incoming_) {
    if (message.msg_iovlen == kRanges) break;
    parts[message.msg_iovlen++] = {range.data, range.bytes};
  }
  const ssize_t moved =
      shm::retried([&] { return ::recvmsg(socket_.get(), &message, MSG_DONTWAIT); });
  if (moved > 0) {
    received_ += static_cast<uint64_t>(moved);
    advance(incoming_, static_cast<size_t>(moved));
    return true;
  }
  if (moved == 0 || (errno == ECONNRESET)) {
    state_ = State::kClosed;
  } else if (errno != EAGAIN) {
    state_ = State::kFailed;
    error_number_ = errno;
  }
  return false;
}

void TcpStream::advance(std::deque<Range>& queue, size_t bytes) {
  while (bytes > 0) {
    Range& first = queue.front();
    const size_t taken = std::min(bytes, first.bytes);
    first.data += taken;
    first.bytes -= taken;
    bytes -= taken;
    if (first.bytes == 0) queue.pop_front();
  }
}

}  // namespace farandole::comm::tcp
