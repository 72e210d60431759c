// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <utility>

#include "comm/fork_guard.h"
#include "comm/mpi/messages.h"
#include "comm/shm/bootstrap/liveness.h"
#include "comm/transfer_errors.h"
#include "farandole/error.h"

namespace farandole::comm::mpi {

/// The message in front of a message's bytes.
struct Messages::Head {
  uint64_t tag;
  uint64_t bytes;
  uint64_t number;  ///< of the messages from its source to this rank
};

/// One side of a message. All but `done` and `other` is guarded by the owner's mutex_.
class Messages::Operation final : public Transfer {
 public:
  Operation(Messages& messages, const Request& asked, const char* function)
      : owner(messages), request(asked), name(function), other(asked.peer) {}

  bool is_done() override {
    if (done.load(std::memory_order_acquire)) return true;  // the owner may be destroyed by then
    check_in_creator();
    Lock lock(owner.mutex_);
    owner.advance();
    owner.tell_group(lock);
    return done.load(std::memory_order_relaxed);
  }
  void wait(std::chrono::milliseconds limit) override {
    if (!done.load(std::memory_order_acquire)) {
      check_in_creator();
      const auto alive = owner.shared_from_this();  // its group may be destroyed meanwhile
      owner.wait(*this, limit.count() > 0 ? std::min(limit, shm::kMostTimeout) : request.timeout);
    }
    if (error) std::rethrow_exception(error);
  }
  void when_done(std::function<void()> call) override {
    if (done.load(std::memory_order_acquire)) return call();
    check_in_creator();
    const std::lock_guard<std::mutex> lock(owner.mutex_);
    if (done.load(std::memory_order_relaxed)) {
      call();
    } else {
      wake = std::move(call);
    }
  }
  int peer() const override { return other; }

  Messages& owner;
  const Request request;
  const char* const name;      ///< "send" or "recv"
  std::atomic<int> other;      ///< the peer; kAnySource until a message has come
  Head head{};                 ///< of a send
  Requests requests;           ///< of a send
  std::exception_ptr error;    ///< written before done
  std::function<void()> wake;  ///< may be empty
  std::atomic<bool> done{false};

 private:
  void check_in_creator() const {
    if (!fork_guard_.in_creator()) throw_forked_transfer();
  }

  const ForkGuard fork_guard_;
};

/// An incoming message.
struct Messages::Incoming {
  int source = 0;
  Head head{};
  bool has_started = false;  ///< its bytes are being received
  Requests requests;
  std::shared_ptr<Operation> receive;  ///< who gets it; null: nobody asked yet
  std::unique_ptr<std::byte[]> kept;   ///< its bytes, if they are not received in their place
};

}  // namespace farandole::comm::mpi
