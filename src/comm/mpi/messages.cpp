// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/messages.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "comm/mpi/check.h"
#include "comm/mpi/runtime.h"
#include "comm/mpi/wide_collectives.h"
#include "comm/transfer_errors.h"
#include "farandole/error.h"

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
  void wait(milliseconds limit) override {
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
    if (fork_guard_.in_creator()) return;
    throw CommError("forked-transfer", "a send or receive was used in a forked child process.",
                    "the child shares the rank's memory but is not a rank.",
                    "wait for it in the process that started it, and not in DataLoader workers.");
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
    tell_group(lock);
  }
}

/// Fails a receive that waits for a message of this rank itself, which cannot send while it waits.
/// Needs mutex_.
void Messages::refuse_endless(Operation& operation) {
  const int own = topology_.rank;
  const bool is_alone = topology_.world_size == 1;
  if (operation.other != own && !(is_alone && operation.other == kAnySource)) return;
  const auto receive = std::find_if(receives_.begin(), receives_.end(),
                                    [&](const auto& each) { return each.get() == &operation; });
  const bool is_sent = std::any_of(sends_.begin(), sends_.end(), [&](const auto& each) {
    return each->request.peer == own && each->request.tag == operation.request.tag;
  });
  if (receive == receives_.end() || is_sent) return;
  const auto kept = std::move(*receive);  // owns `operation`
  receives_.erase(receive);
  finish(operation, receive_from_itself_error(topology_, operation.request.tag));
}

// ---- Failures

/// Ends the group because `operation` reached its timeout. Needs mutex_.
void Messages::fail_late(Operation& operation, milliseconds timeout) {
  if (operation.done.load(std::memory_order_relaxed)) return;
  const MessageText text{operation.request.bytes, operation.other, operation.request.tag,
                         operation.name};
  const std::string what = late_transfer_text(topology_, text, timeout.count());
  give_up(what, late_transfer_error(topology_, text, what), -1);
}

/// All transfers will fail with `error` once the group has been told why. Needs mutex_.
void Messages::give_up(const std::string& why, std::exception_ptr error, int lost_rank) {
  if (failure_ || error_) return;
  lost_rank_ = lost_rank;
  gave_up_ = topology_.name_of(topology_.rank) + " gave up: " + why;
  error_ = std::move(error);
}

/// Tells the group if this rank gave up, then fails all transfers.
void Messages::tell_group(Lock& lock) {
  if (gave_up_.empty()) return;
  const std::string reason = std::exchange(gave_up_, "");
  lock.unlock();
  group_.abort(reason, lost_rank_);
  lock.lock();
  fail_all(error_);
}

/// Fails all transfers if the group is over, or a peer of one of them has ended. Needs mutex_.
void Messages::look_for_failures() {
  next_look_ = Clock::now() + shm::kLivenessInterval;
  if (failure_ || error_) return;
  group_.listen();
  try {
    group_.check_usable({[this] { return "group '" + group_.name() + "'"; }});
  } catch (const CommError&) {
    fail_all(std::current_exception());
    return;
  }
  advance();  // messages that a peer sent before it ended are received
  const int gone = find_lost();
  if (gone < 0) return;
  const std::string what = cut_off_transfer_text(topology_, gone);
  give_up(what, cut_off_transfer_error(topology_, gone, what), gone);
}

/// A peer of a transfer that has ended; -1: none.
int Messages::find_lost() const {
  int others_left = 0;
  std::vector<bool> lost(static_cast<size_t>(topology_.world_size));
  for (int peer = 0; peer < topology_.world_size; ++peer) {
    if (peer == topology_.rank) continue;
    lost[static_cast<size_t>(peer)] = group_.is_lost(peer);
    others_left += lost[static_cast<size_t>(peer)] ? 0 : 1;
  }
  const auto is_lost = [&](int peer) { return lost[static_cast<size_t>(peer)]; };
  for (const auto& send : sends_) {
    if (is_lost(send->request.peer)) return send->request.peer;
  }
  for (const auto& receive : receives_) {
    if (receive->other != kAnySource && is_lost(receive->other)) return receive->other;
    const bool nobody_left = receive->other == kAnySource && others_left == 0;
    if (nobody_left && topology_.world_size > 1) return topology_.rank == 0 ? 1 : 0;
  }
  for (const Incoming& message : incoming_) {
    if (message.receive && is_lost(message.source)) return message.source;
  }
  return -1;
}

/// MPI must not write to buffers of receives any more; what it may still read of sends, stays.
void Messages::fail_all(const std::exception_ptr& error) {
  if (!failure_) failure_ = error;
  const bool is_over = Runtime::is_over();
  for (auto& send : sends_) {
    if (!is_over && !are_done(send->requests)) new std::shared_ptr<Operation>(send);  // its head
    finish(*send, error);
  }
  sends_.clear();
  for (auto& receive : receives_) finish(*receive, error);
  receives_.clear();
  for (Incoming& message : incoming_) {
    for (MPI_Request& request : message.requests) {
      if (is_over || request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&request);
      MPI_Request_free(&request);
      static_cast<void>(message.kept.release());  // if it is too late to cancel
    }
    if (message.receive) finish(*message.receive, error);
  }
  incoming_.clear();
}

}  // namespace farandole::comm::mpi
