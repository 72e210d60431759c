// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/point_to_point.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "comm/shm/futex.h"
#include "farandole/error.h"
#include "signals_blocked.h"

namespace farandole::comm::shm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr milliseconds kLivenessInterval{50};
/// Waiters of transfers share a mutex with the helper, so they spin less than waiters of
/// collectives.
constexpr microseconds kMostSpin{50};

}  // namespace

/// What goes ahead of a message's bytes.
struct PointToPoint::Envelope {
  uint64_t tag;
  uint64_t bytes;
};

/// One side of a message. `state` members are guarded by the owner's mutex_, but for `done`.
class PointToPoint::Operation final : public Transfer {
 public:
  Operation(PointToPoint& point_to_point, const Request& asked)
      : owner(point_to_point), request(asked), other(asked.peer) {}

  bool is_done() override {
    if (done.load(std::memory_order_acquire)) return true;  // the owner may be gone by then
    owner.lockstep_.check_in_creator();
    const std::lock_guard<std::mutex> lock(owner.mutex_);
    owner.advance();
    return done.load(std::memory_order_relaxed);
  }
  void wait(milliseconds limit) override {
    if (!done.load(std::memory_order_acquire)) {
      owner.lockstep_.check_in_creator();
      owner.wait(*this, limit.count() > 0 ? limit : request.timeout);
    }
    if (error) std::rethrow_exception(error);
  }
  void when_done(std::function<void()> call) override {
    if (done.load(std::memory_order_acquire)) return call();
    owner.lockstep_.check_in_creator();
    const std::lock_guard<std::mutex> lock(owner.mutex_);
    if (done.load(std::memory_order_relaxed)) {
      call();
    } else {
      wake = std::move(call);
    }
  }
  int peer() const override { return other; }

  PointToPoint& owner;
  const Request request;
  int other;                   ///< the peer; kAnySource until a message has come
  size_t envelope_moved = 0;   ///< bytes of the envelope already sent
  size_t moved = 0;            ///< bytes already sent
  std::exception_ptr error;    ///< written before done
  std::function<void()> wake;  ///< may be empty
  std::atomic<bool> done{false};
};

/// A message on its way in.
struct PointToPoint::Incoming {
  int source = 0;
  Envelope envelope{};
  size_t envelope_moved = 0;
  size_t moved = 0;
  std::shared_ptr<Operation> receive;  ///< who gets it; null: nobody asked yet
  std::vector<std::byte> kept;         ///< the bytes, while nobody has asked

  bool has_envelope() const { return envelope_moved == sizeof(envelope); }
  bool complete() const { return has_envelope() && moved == envelope.bytes; }
};

size_t PointToPoint::capacity_for(int world_size) {
  size_t capacity = 128 * 1024;
  while (capacity > 8192 && capacity * static_cast<size_t>(world_size) > 1024 * 1024) capacity /= 2;
  return capacity;
}

size_t PointToPoint::shared_bytes(int world_size) {
  const auto world = static_cast<size_t>(world_size);
  return world * sizeof(Doorbell) + world * world * Channel::bytes_for(capacity_for(world_size));
}

PointToPoint::PointToPoint(std::byte* shared, const Topology& topology, Lockstep& lockstep,
                           microseconds spin)
    : topology_(topology),
      lockstep_(lockstep),
      spin_(std::min(spin, kMostSpin)),
      capacity_(capacity_for(topology.world_size)),
      doorbells_(reinterpret_cast<Doorbell*>(shared)),
      channels_(shared + static_cast<size_t>(topology.world_size) * sizeof(Doorbell)),
      sends_(static_cast<size_t>(topology.world_size)),
      current_(static_cast<size_t>(topology.world_size), incoming_.end()) {}

PointToPoint::~PointToPoint() {
  if (!lockstep_.in_creator()) {
    // In a forked child neither the helper nor whoever waits for it exists.
    if (helper_.joinable()) helper_.detach();
    static_cast<void>(helper_wanted_.release());
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    fail_all(std::make_exception_ptr(
        AbortedError("a send or receive was not finished.", "its group was destroyed first.",
                     "wait for every transfer before the group goes.")));
  }
  helper_wanted_->notify_all();
  Doorbell& own = doorbells_[topology_.rank];
  own.rings.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(own.rings);
  if (helper_.joinable()) helper_.join();
  std::unique_lock<std::mutex> lock(mutex_);
  while (waiters_ != 0) {  // they have been failed and are on their way out
    lock.unlock();
    std::this_thread::sleep_for(milliseconds(1));
    lock.lock();
  }
}

Channel& PointToPoint::channel(int source, int destination) const {
  const auto index = static_cast<size_t>(source * topology_.world_size + destination);
  return *reinterpret_cast<Channel*>(channels_ + index * Channel::bytes_for(capacity_));
}

std::shared_ptr<Transfer> PointToPoint::send(const Request& request) {
  auto operation = std::make_shared<Operation>(*this, request);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  start_helper();
  ++pending_;
  sends_[static_cast<size_t>(request.peer)].push_back(operation);
  advance();
  if (pending_ != 0) wake_helper();
  return operation;
}

std::shared_ptr<Transfer> PointToPoint::receive(const Request& request) {
  auto operation = std::make_shared<Operation>(*this, request);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  start_helper();
  ++pending_;
  advance();
  for (auto message = incoming_.begin(); message != incoming_.end(); ++message) {
    if (message->receive || !message->has_envelope() || !matches(*operation, *message)) continue;
    message->receive = operation;
    operation->other = message->source;
    if (message->complete()) {
      deliver(*message);
      incoming_.erase(message);
    }
    if (pending_ != 0) wake_helper();
    return operation;
  }
  receives_.push_back(operation);
  wake_helper();
  return operation;
}

bool PointToPoint::matches(const Operation& receive, const Incoming& message) const {
  return receive.request.tag == message.envelope.tag &&
         (receive.other == kAnySource || receive.other == message.source);
}

/// Moves what can be moved now. Returns whether anything did. Needs mutex_.
bool PointToPoint::advance() {
  if (failure_) return false;
  bool moved = false;
  for (int peer = 0; peer < topology_.world_size; ++peer) {
    moved = advance_sends(peer) || moved;
    moved = advance_receives(peer) || moved;
  }
  return moved;
}

bool PointToPoint::advance_sends(int destination) {
  auto& queue = sends_[static_cast<size_t>(destination)];
  if (queue.empty()) return false;
  Channel& to = channel(topology_.rank, destination);
  size_t total = 0;
  while (!queue.empty()) {
    Operation& send = *queue.front();
    const Envelope envelope{send.request.tag, send.request.bytes};
    const auto* head = reinterpret_cast<const std::byte*>(&envelope);
    size_t n =
        to.write(head + send.envelope_moved, sizeof(envelope) - send.envelope_moved, capacity_);
    send.envelope_moved += n;
    total += n;
    if (send.envelope_moved < sizeof(envelope)) break;
    n = to.write(send.request.data + send.moved, send.request.bytes - send.moved, capacity_);
    send.moved += n;
    total += n;
    if (send.moved < send.request.bytes) break;
    finish(send, nullptr);
    queue.pop_front();
  }
  if (total != 0) ring(destination);
  return total != 0;
}

bool PointToPoint::advance_receives(int source) {
  Channel& from = channel(source, topology_.rank);
  bool moved = false;
  while (from.readable() != 0) {
    auto& place = current_[static_cast<size_t>(source)];
    if (place == incoming_.end()) {
      incoming_.emplace_back();
      place = std::prev(incoming_.end());
      place->source = source;
    }
    moved = true;
    if (!place->has_envelope() && !take_envelope(source)) break;
    Incoming& message = *place;
    const bool fits =
        message.receive == nullptr || message.receive->request.bytes == message.envelope.bytes;
    const bool kept = !message.kept.empty() || message.receive == nullptr;
    std::byte* to = kept ? message.kept.data() : message.receive->request.data;
    message.moved += from.take(fits || kept ? to + message.moved : nullptr,
                               message.envelope.bytes - message.moved, capacity_);
    if (!message.complete()) continue;
    if (message.receive) {
      deliver(message);
      incoming_.erase(place);
    }
    place = incoming_.end();
  }
  if (moved) ring(source);
  return moved;
}

/// Reads the envelope of the message that begins in the channel from `source` and looks for the
/// receive that waits for it. False if the envelope has not come whole.
bool PointToPoint::take_envelope(int source) {
  Incoming& message = *current_[static_cast<size_t>(source)];
  auto* head = reinterpret_cast<std::byte*>(&message.envelope);
  message.envelope_moved += channel(source, topology_.rank)
                                .take(head + message.envelope_moved,
                                      sizeof(message.envelope) - message.envelope_moved, capacity_);
  if (!message.has_envelope()) return false;
  for (auto receive = receives_.begin(); receive != receives_.end(); ++receive) {
    if (!matches(**receive, message)) continue;
    message.receive = *receive;
    message.receive->other = source;
    receives_.erase(receive);
    return true;
  }
  message.kept.resize(message.envelope.bytes);
  return true;
}

/// Hands a complete message to its receive.
void PointToPoint::deliver(Incoming& message) {
  Operation& receive = *message.receive;
  receive.other = message.source;
  std::exception_ptr error;
  if (receive.request.bytes != message.envelope.bytes) {
    error = std::make_exception_ptr(MismatchError(
        "rank " + std::to_string(topology_.rank) + " received " +
            std::to_string(message.envelope.bytes) + " bytes from rank " +
            std::to_string(message.source) + " with tag " + std::to_string(receive.request.tag) +
            " into a buffer of " + std::to_string(receive.request.bytes) + " bytes.",
        "the send and the receive that it met differ in size.",
        "give both sides tensors of one shape and dtype, or different tags."));
  } else if (!message.kept.empty()) {
    std::memcpy(receive.request.data, message.kept.data(), message.kept.size());
  }
  finish(receive, error);
}

void PointToPoint::finish(Operation& operation, std::exception_ptr error) {
  operation.error = std::move(error);
  operation.done.store(true, std::memory_order_release);
  --pending_;
  if (const auto wake = std::exchange(operation.wake, nullptr)) wake();
}

void PointToPoint::ring(int rank) {
  Doorbell& bell = doorbells_[rank];
  if (bell.sleepers.load(std::memory_order_seq_cst) == 0) return;
  bell.rings.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(bell.rings);
}

/// Sleeps until a peer rings or `limit` is over; returns at once if bytes could be moved. mutex_ is
/// free.
bool PointToPoint::sleep_at_doorbell(const Operation* operation, microseconds limit) {
  Doorbell& own = doorbells_[topology_.rank];
  own.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t rings = own.rings.load(std::memory_order_seq_cst);
  bool moved = false;
  bool stop = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    moved = advance();
    stop = closing_ || failure_ != nullptr || (operation != nullptr && operation->done);
  }
  if (!moved && !stop) futex_wait(own.rings, rings, limit);
  own.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return moved;
}

void PointToPoint::wait(Operation& operation, milliseconds timeout) {
  const auto begin = Clock::now();
  const auto deadline = begin + timeout;
  const auto spin_end = begin + spin_;
  auto next_look = begin + kLivenessInterval;
  std::unique_lock<std::mutex> lock(mutex_);
  ++waiters_;
  while (!operation.done.load(std::memory_order_relaxed)) {
    const bool moved = advance();
    if (operation.done.load(std::memory_order_relaxed)) break;
    lock.unlock();
    const auto now = Clock::now();
    if (!moved && now > spin_end) sleep_at_doorbell(&operation, kLivenessInterval);
    lock.lock();
    if (now > next_look) {
      look_for_failures();
      next_look = now + kLivenessInterval;
    }
    if (now > deadline && !operation.done.load(std::memory_order_relaxed)) {
      const std::string peer =
          operation.other == kAnySource ? "any rank" : topology_.describe(operation.other);
      const std::string what =
          "a transfer of " + std::to_string(operation.request.bytes) + " bytes with " + peer +
          ", tag " + std::to_string(operation.request.tag) + ", timed out on rank " +
          std::to_string(topology_.rank) + " after " + std::to_string(timeout.count()) + " ms.";
      fail_all(std::make_exception_ptr(
          TimeoutError(what, "the other side has not posted its send or receive.",
                       "post it with the same tag, or raise the timeout.")));
      lockstep_.abort("rank " + std::to_string(topology_.rank) + " gave up: " + what);
    }
  }
  --waiters_;
  if (pending_ != 0 && waiters_ == 0) helper_wanted_->notify_one();
}

/// Fails everything if a peer that something waits for will never come. Needs mutex_.
void PointToPoint::look_for_failures() {
  try {
    lockstep_.check_peers();
  } catch (const CommError&) {
    fail_all(std::current_exception());
    return;
  }
  std::vector<bool> is_gone(static_cast<size_t>(topology_.world_size));
  int others_left = 0;
  for (int peer = 0; peer < topology_.world_size; ++peer) {
    if (peer == topology_.rank) continue;
    is_gone[static_cast<size_t>(peer)] = lockstep_.is_gone(peer);
    if (!is_gone[static_cast<size_t>(peer)]) ++others_left;
  }
  advance();  // what a peer sent before it ended counts
  const auto lost = [&](int peer) { return is_gone[static_cast<size_t>(peer)]; };
  int gone = -1;
  for (int peer = 0; peer < topology_.world_size; ++peer) {
    if (!sends_[static_cast<size_t>(peer)].empty() && lost(peer)) gone = peer;
  }
  for (const auto& receive : receives_) {
    if (receive->other != kAnySource && lost(receive->other)) gone = receive->other;
    const bool nobody_left = receive->other == kAnySource && others_left == 0;
    if (nobody_left && topology_.world_size > 1) gone = topology_.rank == 0 ? 1 : 0;
  }
  for (const Incoming& message : incoming_) {
    if (!message.complete() && lost(message.source)) gone = message.source;
  }
  if (gone < 0) return;
  const std::string what = "a transfer between rank " + std::to_string(topology_.rank) + " and " +
                           topology_.describe(gone) + " was cut off.";
  fail_all(std::make_exception_ptr(
      PeerFailure(what, "that rank ended or left the group.",
                  "look at that rank's own output, then restart the job or go on without it.")));
  lockstep_.abort("rank " + std::to_string(topology_.rank) + " gave up: " + what);
}

void PointToPoint::fail_all(std::exception_ptr error) {
  if (!failure_) failure_ = error;
  for (auto& queue : sends_) {
    for (auto& send : queue) finish(*send, error);
    queue.clear();
  }
  for (auto& receive : receives_) finish(*receive, error);
  receives_.clear();
  for (Incoming& message : incoming_) {
    if (message.receive) finish(*message.receive, error);
  }
  std::fill(current_.begin(), current_.end(), incoming_.end());
  incoming_.clear();
}

/// Started by the first transfer, before it is queued: a thread that cannot start leaves nothing
/// behind.
void PointToPoint::start_helper() {
  if (helper_.joinable()) return;
  const SignalsBlocked blocked;
  helper_ = std::thread([this] { help(); });
}

void PointToPoint::wake_helper() {
  if (waiters_ == 0) helper_wanted_->notify_one();
}

/// The helper thread: moves bytes while something is pending and nobody waits.
void PointToPoint::help() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!closing_) {
    helper_wanted_->wait(lock, [this] { return closing_ || (pending_ != 0 && waiters_ == 0); });
    if (closing_) return;
    lock.unlock();
    sleep_at_doorbell(nullptr, kLivenessInterval);
    lock.lock();
    look_for_failures();
  }
}

}  // namespace farandole::comm::shm
