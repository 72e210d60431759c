// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/tcp_stream.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "comm/shm/system/system_call.h"

namespace farandole::comm::tcp {
namespace {

/// What one system call moves.
struct Parts {
  std::array<iovec, 16> ranges{};
  msghdr message{};

  template <class Queue>
  explicit Parts(const Queue& queue) {
    message.msg_iov = ranges.data();
    for (const auto& range : queue) {
      if (message.msg_iovlen == ranges.size()) break;
      ranges[message.msg_iovlen++] = {range.data, range.bytes};
    }
  }
};

std::string text_of_errno(int number) {
  return std::string(std::strerror(number)) + " (errno " + std::to_string(number) + ").";
}

}  // namespace

bool TcpStream::progress() {
  if (state() != State::kOpen) return false;
  const bool has_sent = send_some();
  return receive_some() || has_sent;
}

bool TcpStream::send_some() {
  if (outgoing().empty()) return false;
  const Parts parts(outgoing());
  const ssize_t moved = shm::retried(
      [&] { return ::sendmsg(socket_.get(), &parts.message, MSG_DONTWAIT | MSG_NOSIGNAL); });
  if (moved > 0) {
    note_sent(static_cast<size_t>(moved));
    return true;
  }
  if (moved < 0 && errno != EAGAIN) {
    // The peer has closed; what it sent before may still be read.
    const bool is_closed = errno == EPIPE || errno == ECONNRESET;
    end(is_closed ? State::kClosed : State::kSilent, text_of_errno(errno));
  }
  return false;
}

bool TcpStream::receive_some() {
  if (incoming().empty() || state() == State::kSilent) return false;
  Parts parts(incoming());
  const ssize_t moved =
      shm::retried([&] { return ::recvmsg(socket_.get(), &parts.message, MSG_DONTWAIT); });
  if (moved > 0) {
    note_received(static_cast<size_t>(moved));
    return true;
  }
  if (moved == 0 || errno == ECONNRESET) {
    end(State::kClosed);
  } else if (errno != EAGAIN) {
    end(State::kSilent, text_of_errno(errno));
  }
  return false;
}

}  // namespace farandole::comm::tcp
