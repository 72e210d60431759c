// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "comm/tcp/socket.h"
#include "farandole/export.h"

namespace farandole::comm::tcp {

/// The bytes between this rank and a rank of another host over one TCP connection, in order in each
/// direction. There is no framing: both ranks know how many bytes come next.
///
/// Threads: one call at a time.
class FARANDOLE_API TcpStream {
 public:
  /// What the connection has come to.
  enum class State { kOpen, kClosed, kFailed };

  TcpStream() = default;
  explicit TcpStream(Socket socket) : socket_(std::move(socket)) {}

  /// Queues `bytes` of `data`, which must stay unchanged until sent() has reached what this
  /// returns.
  uint64_t send(const void* data, size_t bytes);
  /// Queues a place for the next `bytes`; `data` belongs to the stream until received() has reached
  /// what this returns.
  uint64_t receive(void* data, size_t bytes);
  /// Moves what the connection takes and gives without waiting, in a bounded amount, so that
  /// several streams share a thread. Returns whether bytes were moved.
  bool progress();

  /// Bytes moved since the connection was made, also of a message that is not complete.
  uint64_t sent() const { return sent_; }
  uint64_t received() const { return received_; }
  bool is_idle() const { return outgoing_.empty() && incoming_.empty(); }

  int descriptor() const { return socket_.get(); }
  /// What poll() should wait for; 0: nothing is queued.
  short events() const;
  State state() const { return state_; }
  /// errno of a kFailed connection.
  int error_number() const { return error_number_; }

 private:
  struct Range {
    char* data;
    size_t bytes;
  };

  bool send_some();
  bool receive_some();
  static void advance(std::deque<Range>& queue, size_t bytes);

  Socket socket_;
  std::deque<Range> outgoing_;
  std::deque<Range> incoming_;
  uint64_t queued_to_send_ = 0;     ///< what sent_ becomes
  uint64_t queued_to_receive_ = 0;  ///< what received_ becomes
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
  State state_ = State::kOpen;
  int error_number_ = 0;
};

}  // namespace farandole::comm::tcp
