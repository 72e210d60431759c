// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/messages.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "comm/mpi/check.h"
#include "comm/mpi/message_parts.h"
#include "comm/mpi/runtime.h"
#include "comm/mpi/wide_collectives.h"
#include "comm/shm/bootstrap/liveness.h"
#include "comm/transfer_errors.h"
#include "farandole/comm/interrupt.h"

namespace farandole::comm::mpi {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr microseconds kFirstNap{20};
constexpr microseconds kLongestNap{500};
/// Bytes of messages that this process keeps though no receive waits for anything.
constexpr size_t kMostKeptBytes = size_t{2} << 20;
/// Looks of a spinning waiter between two at the clock.
constexpr int kLooksPerClock = 16;

}  // namespace

Messages::Messages(Group& group, microseconds spin, int most_tag)
    : group_(group),
      topology_(group.topology()),
      spin_(spin),
      payload_tags_(most_tag - kPayload),
      sent_(static_cast<size_t>(group.topology().world_size)) {}

Messages::~Messages() = default;

void Messages::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  fail_all(unfinished_transfer_error());
}

int Messages::payload_tag(uint64_t number) const {
  return kPayload + static_cast<int>(number % static_cast<uint64_t>(payload_tags_));
}

/// The common beginning of send() and receive(). Needs mutex_.
void Messages::begin() {
  if (failure_) std::rethrow_exception(failure_);
  if (!registered_) ProgressThread::get().add(shared_from_this());
  registered_ = true;
}

std::shared_ptr<Transfer> Messages::send(const Request& request) {
  auto operation = std::make_shared<Operation>(*this, request, "send");
  Lock lock(mutex_);
  begin();
  const uint64_t number = sent_[static_cast<size_t>(request.peer)]++;
  operation->head = {request.tag, request.bytes, number};
  const auto add = [&](const void* data, size_t bytes, int tag) {
    operation->requests.push_back(MPI_REQUEST_NULL);
    check(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, request.peer, tag,
                    group_.communicator(), &operation->requests.back()),
          "MPI_Isend");
  };
  add(&operation->head, sizeof(Head), kMessageHead);
  constexpr size_t kMost = WideCollectives::kMostBytes;
  for (size_t offset = 0; offset < request.bytes; offset += kMost) {
    add(request.data + offset, std::min(kMost, request.bytes - offset), payload_tag(number));
  }
  sends_.push_back(operation);
  advance();
  lock.unlock();
  ProgressThread::get().wake();
  return operation;
}

std::shared_ptr<Transfer> Messages::receive(const Request& request) {
  auto operation = std::make_shared<Operation>(*this, request, "recv");
  Lock lock(mutex_);
  begin();
  const auto message = std::find_if(incoming_.begin(), incoming_.end(), [&](const Incoming& each) {
    return !each.receive && matches(*operation, each);
  });
  if (message == incoming_.end()) {
    receives_.push_back(operation);
  } else {
    attach(*message, operation);
  }
  advance();
  lock.unlock();
  ProgressThread::get().wake();
  return operation;
}

bool Messages::matches(const Operation& receive, const Incoming& message) const {
  return receive.request.tag == message.head.tag &&
         (receive.other == kAnySource || receive.other == message.source);
}

// ---- Progress

/// Moves what MPI can move now. Returns whether something has changed. Needs mutex_.
bool Messages::advance() {
  if (failure_ || error_ || Runtime::is_over()) return false;
  const bool heard = hear_heads();
  const bool sent = advance_sends();
  return advance_incoming() || sent || heard;
}

bool Messages::hear_heads() {
  bool heard = false;
  while (true) {
    int is_there = 0;
    MPI_Message found = MPI_MESSAGE_NULL;
    MPI_Status status;
    const int code = MPI_Improbe(MPI_ANY_SOURCE, kMessageHead, group_.communicator(), &is_there,
                                 &found, &status);
    if (code != MPI_SUCCESS || is_there == 0) return heard;  // see look_for_failures()
    Incoming message;
    check(MPI_Mrecv(&message.head, sizeof(Head), MPI_BYTE, &found, &status), "MPI_Mrecv");
    message.source = status.MPI_SOURCE;
    heard = true;
    incoming_.push_back(std::move(message));
    Incoming& added = incoming_.back();
    const auto receive = std::find_if(receives_.begin(), receives_.end(),
                                      [&](const auto& each) { return matches(*each, added); });
    if (receive == receives_.end()) continue;
    attach(added, *receive);
    receives_.erase(receive);
  }
}

bool Messages::are_done(Requests& requests) {
  for (MPI_Request& request : requests) {
    int is_done = 0;
    const int code = MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS || is_done == 0) return false;  // see look_for_failures()
  }
  return true;
}

bool Messages::advance_sends() {
  bool moved = false;
  for (auto each = sends_.begin(); each != sends_.end();) {
    if (!are_done((*each)->requests)) {
      ++each;
      continue;
    }
    finish(**each, nullptr);
    each = sends_.erase(each);
    moved = true;
  }
  return moved;
}

bool Messages::advance_incoming() {
  bool moved = false;
  for (auto each = incoming_.begin(); each != incoming_.end();) {
    if (!each->has_started && may_keep(*each)) {
      each->kept.reset(new (std::nothrow) std::byte[each->head.bytes]);
      if (each->kept) {
        kept_bytes_ += each->head.bytes;
        start(*each, each->kept.get());
      }
    }
    if (!each->has_started || !each->receive || !are_done(each->requests)) {
      ++each;
      continue;
    }
    deliver(*each);
    each = incoming_.erase(each);
    moved = true;
  }
  return moved;
}

/// Whether the bytes of a message without a receive are to be received: they are few, or this rank
/// sends or receives something else, which its peers may not answer before their messages have
/// left.
bool Messages::may_keep(const Incoming& message) const {
  return kept_bytes_ + message.head.bytes <= kMostKeptBytes || !sends_.empty() ||
         !receives_.empty();
}

/// Receives the message's bytes.
void Messages::start(Incoming& message, std::byte* to) {
  constexpr size_t kMost = WideCollectives::kMostBytes;
  message.has_started = true;
  for (size_t offset = 0; offset < message.head.bytes; offset += kMost) {
    message.requests.push_back(MPI_REQUEST_NULL);
    check(MPI_Irecv(to + offset, static_cast<int>(std::min(kMost, message.head.bytes - offset)),
                    MPI_BYTE, message.source, payload_tag(message.head.number),
                    group_.communicator(), &message.requests.back()),
          "MPI_Irecv");
  }
}

/// Assigns the message to `receive`; one of another size is received apart.
void Messages::attach(Incoming& message, const std::shared_ptr<Operation>& receive) {
  message.receive = receive;
  receive->other = message.source;
  if (message.has_started) return;
  if (receive->request.bytes == message.head.bytes) return start(message, receive->request.data);
  message.kept = std::make_unique<std::byte[]>(message.head.bytes);
  kept_bytes_ += message.head.bytes;
  start(message, message.kept.get());
}

/// Completes the receive of a complete message.
void Messages::deliver(Incoming& message) {
  Operation& receive = *message.receive;
  const size_t bytes = message.head.bytes;
  if (message.kept) kept_bytes_ -= bytes;
  if (receive.request.bytes != bytes) {
    return finish(receive, transfer_size_error(topology_, bytes,
                                               {receive.request.bytes, message.source,
                                                receive.request.tag, receive.name}));
  }
  if (message.kept && bytes > 0) std::memcpy(receive.request.data, message.kept.get(), bytes);
  finish(receive, nullptr);
}

void Messages::finish(Operation& operation, const std::exception_ptr& error) {
  operation.error = error;
  operation.done.store(true, std::memory_order_release);
  if (const auto wake = std::exchange(operation.wake, nullptr)) wake();
}

size_t Messages::pending() const {
  size_t pending = sends_.size() + receives_.size();
  for (const Incoming& each : incoming_) pending += each.receive || each.has_started ? 1 : 0;
  return pending;
}

bool Messages::progress() {
  Lock lock(mutex_, std::try_to_lock);
  if (!lock) return true;  // somebody else does it
  if (closed_ || failure_) return false;
  advance();
  if (pending() == 0) return false;
  if (Clock::now() >= next_look_) look_for_failures();
  tell_group(lock);
  return true;
}

// ---- Waiting

void Messages::wait(Operation& operation, milliseconds timeout) {
  const auto begin = Clock::now();
  const auto deadline = begin + timeout;
  auto spins_until = begin + spin_;
  microseconds nap = kFirstNap;
  Lock lock(mutex_);
  advance();
  refuse_endless(operation);
  auto next_question = begin + shm::kLivenessInterval;
  bool was_interrupted = false;
  for (int look = 1; !operation.done.load(std::memory_order_relaxed); ++look) {
    lock.unlock();
    const bool spins = look % kLooksPerClock != 0 || Clock::now() < spins_until;
    if (spins) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(nap);
      nap = std::min(nap + nap / 4, kLongestNap);
    }
    lock.lock();
    if (advance()) {
      nap = kFirstNap;
      if (look % kLooksPerClock == 0) spins_until = Clock::now() + spin_;
    }
    if (look % kLooksPerClock != 0) continue;
    if (Clock::now() >= next_look_) look_for_failures();
    if (Clock::now() >= deadline) fail_late(operation, timeout);
    if (!was_interrupted && Clock::now() >= next_question) {
      next_question = Clock::now() + shm::kLivenessInterval;
      lock.unlock();  // the check may need a lock of another language, whose holder may need this
                      // one
      was_interrupted = is_interrupted();
      lock.lock();
      if (was_interrupted) fail_interrupted(operation);
    }
    tell_group(lock);
  }
  if (was_interrupted) throw interrupted_error("a wait for a transfer");
}

}  // namespace farandole::comm::mpi
