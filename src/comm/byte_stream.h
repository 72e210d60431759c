// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "farandole/export.h"

namespace farandole::comm {

/// The bytes between this rank and a rank of another host, in order in each direction. There is no
/// framing: both ranks know how many bytes come next.
///
/// Threads: one call at a time.
class FARANDOLE_API ByteStream {
 public:
  /// What the connection has come to.
  enum class State {
    kOpen,
    kClosed,  ///< by the peer, or because its process has ended
    kSilent,  ///< the peer's host has not answered for too long
    kFailed   ///< for another reason
  };

  virtual ~ByteStream() = default;

  /// Queues `bytes` of `data`, which must stay unchanged until sent() has reached what this
  /// returns.
  uint64_t send(const void* data, size_t bytes);
  /// Queues a place for the next `bytes`; `data` belongs to the stream until received() has reached
  /// what this returns.
  uint64_t receive(void* data, size_t bytes);
  /// Moves what the connection takes and gives without waiting, in a bounded amount, so that
  /// several streams share a thread. Returns whether bytes were moved.
  virtual bool progress() = 0;
  /// Nobody calls progress() for a while: what was sent must arrive all the same.
  virtual void rest() {}
  /// Nothing more is sent; the peer's stream ends when it has received all. Any thread.
  virtual void close() {}
  /// Nobody needs what was sent and is not delivered yet.
  void give_up() { end(State::kClosed); }

  /// Bytes moved since the connection was made, also of a message that is not complete.
  uint64_t sent() const { return sent_; }
  uint64_t received() const { return received_; }
  bool is_idle() const { return outgoing_.empty() && incoming_.empty(); }

  /// What poll() tells of; -1: progress() must be called again and again instead.
  virtual int descriptor() const { return -1; }
  /// Whether the connection is still that of this stream: a program may close descriptors that it
  /// has not opened. Any thread.
  virtual bool is_intact() const { return true; }
  /// What poll() should wait for; 0: nothing is queued.
  short events() const;
  State state() const { return state_; }
  /// Why the connection is kSilent or kFailed.
  const std::string& failure() const { return failure_; }

 protected:
  struct Range {
    char* data;
    size_t bytes;
  };

  const std::deque<Range>& outgoing() const { return outgoing_; }
  const std::deque<Range>& incoming() const { return incoming_; }
  void note_sent(size_t bytes);
  void note_received(size_t bytes);
  void end(State state, std::string failure = {});

 private:
  static void advance(std::deque<Range>& queue, size_t bytes);

  std::deque<Range> outgoing_;
  std::deque<Range> incoming_;
  uint64_t queued_to_send_ = 0;     ///< what sent_ becomes
  uint64_t queued_to_receive_ = 0;  ///< what received_ becomes
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
  State state_ = State::kOpen;
  std::string failure_;
};

/// Opens streams that are no TCP connections.
///
/// Threads: open() one call at a time; others any.
class StreamSource {
 public:
  virtual ~StreamSource() = default;
  /// Stream `lane` with rank `peer` of the group.
  virtual std::unique_ptr<ByteStream> open(int peer, int lane) = 0;
  /// A rank of the group seems to have ended.
  virtual void note_lost() = 0;
  /// Has `leave` called before streams cease to work in this process, if that happens while the
  /// source lives.
  virtual void before_end(std::function<void()> leave) = 0;
};

}  // namespace farandole::comm
