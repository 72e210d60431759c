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

ByteStream::State state_for(int error) {
  if (error == EPIPE || error == ECONNRESET) return ByteStream::State::kClosed;
  return is_silence(error) ? ByteStream::State::kSilent : ByteStream::State::kFailed;
}

}  // namespace

int error_of_connect(int socket) {
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

bool is_silence(int error) {
  return error == ETIMEDOUT || error == EHOSTUNREACH || error == EHOSTDOWN ||
         error == ENETUNREACH || error == ENETDOWN;
}

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
    // Where the peer has closed, what it sent before may still be read.
    const int error = errno;
    end(state_for(error), text_of_errno(error));
  }
  return false;
}

bool TcpStream::receive_some() {
  if (incoming().empty() || state() == State::kSilent || state() == State::kFailed) return false;
  Parts parts(incoming());
  const ssize_t moved =
      shm::retried([&] { return ::recvmsg(socket_.get(), &parts.message, MSG_DONTWAIT); });
  if (moved > 0) {
    note_received(static_cast<size_t>(moved));
    return true;
  }
  if (moved == 0) {
    end(State::kClosed);
  } else if (errno != EAGAIN) {
    const int error = errno;
    end(state_for(error), text_of_errno(error));
  }
  return false;
}

}  // namespace farandole::comm::tcp
