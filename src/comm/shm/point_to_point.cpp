// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/point_to_point.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <utility>

#include "comm/fork_guard.h"
#include "comm/shm/system/futex.h"
#include "comm/shm/system/pause.h"
#include "comm/start_thread.h"
#include "comm/transfer_errors.h"
#include "farandole/comm/interrupt.h"
#include "farandole/error.h"

namespace farandole::comm::shm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

/// How often the helper looks while transfers come and go, and after how many looks at nothing it
/// sleeps without end.
constexpr milliseconds kHelperInterval{1};
constexpr int kIdleLooks = 100;
/// A spinning waiter's looks between two at the clock, and the time that it leaves the mutex free.
constexpr int kLooksPerClock = 32;
constexpr int kPausesPerLook = 4;
/// Bytes of a channel, and about those of all channels of a group.
constexpr size_t kMostCapacity = size_t{2} * 1024 * 1024;
constexpr size_t kLeastCapacity = size_t{16} * 1024;
constexpr size_t kMostInAll = size_t{16} * 1024 * 1024;

}  // namespace

/// The header in front of a message's bytes.
struct PointToPoint::Envelope {
  uint64_t tag;
  uint64_t bytes;
};

/// One side of a message. Its members are guarded by the owner's mutex, but for the atomic ones.
///
/// Its owner may end at any time. Under the mutex, which both share, an operation that is not done
/// has an owner, and one that has none is done: ~PointToPoint() fails what is left and leaves in
/// one piece. Without the mutex an operation uses its own members alone. `done` is stored (release)
/// after all others, so whoever loads it (acquire) as true sees them.
class PointToPoint::Operation final : public Transfer {
 public:
  Operation(const PointToPoint& owner, const Request& asked, const char* function)
      : life(owner.life_), request(asked), name(function) {
    note_peer(owner, asked.peer);
  }

  bool is_done() override {
    if (done.load(std::memory_order_acquire)) return true;
    check_in_creator();
    Lock lock(life->mutex);
    if (life->owner != nullptr) life->owner->look(lock);
    return done.load(std::memory_order_relaxed);
  }
  void wait(milliseconds limit) override {
    if (!done.load(std::memory_order_acquire)) {
      check_in_creator();
      const milliseconds most = limit.count() > 0 ? std::min(limit, kMostTimeout) : request.timeout;
      const auto begin = Clock::now();
      Lock lock(life->mutex);
      if (life->owner != nullptr) life->owner->wait(*this, begin, most, lock);
    }
    if (error) std::rethrow_exception(error);
  }
  void when_done(std::function<void()> call) override {
    if (done.load(std::memory_order_acquire)) return call();
    check_in_creator();
    const std::lock_guard<std::mutex> lock(life->mutex);
    if (done.load(std::memory_order_relaxed)) {
      call();
    } else {
      wake = std::move(call);
      life->owner->ask_helper();
    }
  }
  int peer() const override { return other_in_group; }
  /// Needs the mutex, but in the constructor.
  void note_peer(const PointToPoint& owner, int peer) {
    other_in_group = peer == kAnySource ? peer : owner.topology_.rank_in_group(peer);
    other = peer;
  }

  const std::shared_ptr<Life> life;
  const Request request;
  const char* const name;  ///< "send" or "recv"
  std::atomic<int> other;  ///< the peer; kAnySource until a message has come
  std::atomic<int> other_in_group;
  size_t envelope_moved = 0;   ///< bytes of the envelope already sent
  size_t moved = 0;            ///< bytes already in the channel
  uint64_t end = 0;            ///< what the channel's `written` was then; 0: they are not all in it
  std::exception_ptr error;    ///< written before done
  std::function<void()> wake;  ///< may be empty
  std::atomic<bool> done{false};

 private:
  /// A forked child may have dropped its copy of the owner, which fails nothing there.
  void check_in_creator() const {
    if (!fork_guard_.in_creator()) throw_forked_transfer();
  }

  const ForkGuard fork_guard_;
};

/// An incoming message.
struct PointToPoint::Incoming {
  int source = 0;
  Envelope envelope{};
  size_t envelope_moved = 0;
  size_t moved = 0;
  std::shared_ptr<Operation> receive;  ///< who gets it; null: nobody asked yet
  std::unique_ptr<std::byte[]> kept;   ///< its bytes, once it must_keep()

  bool has_envelope() const { return envelope_moved == sizeof(envelope); }
  bool complete() const { return has_envelope() && moved == envelope.bytes; }
  /// Where its bytes are stored; null if they are dropped, because the receive has another size.
  std::byte* place() const {
    if (!receive) return kept.get();
    return receive->request.bytes == envelope.bytes ? receive->request.data : nullptr;
  }
};

size_t PointToPoint::capacity_for(int world_size) {
  // Like the rings of staging.h a channel is larger than a second-level cache where that is cheap.
  size_t capacity = kMostCapacity;
  const auto channels = static_cast<size_t>(world_size) * static_cast<size_t>(world_size);
  while (capacity > kLeastCapacity && capacity * channels > kMostInAll) capacity /= 2;
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
      spin_(spin),
      capacity_(capacity_for(topology.world_size)),
      doorbells_(reinterpret_cast<Doorbell*>(shared)),
      own_doorbell_(doorbells_ + topology.rank),
      channels_(shared + static_cast<size_t>(topology.world_size) * sizeof(Doorbell)),
      sends_(static_cast<size_t>(topology.world_size)),
      current_(static_cast<size_t>(topology.world_size), incoming_.end()) {
  life_->owner = this;
}

PointToPoint::~PointToPoint() {
  if (!lockstep_.in_creator()) {
    // In a forked child neither the helper nor whoever waits for it exists.
    keep_thread_of_parent(helper_);
    static_cast<void>(helper_wanted_.release());
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    fail_all(unfinished_transfer_error());
    life_->owner = nullptr;
  }
  helper_wanted_->notify_all();
  ring(doorbells_[topology_.rank], Doorbell::kHelper);
  if (helper_.joinable()) helper_.join();
  std::unique_lock<std::mutex> lock(mutex_);
  while (waiters_ != 0) {  // their operations have failed, and they return
    lock.unlock();
    std::this_thread::sleep_for(milliseconds(1));
    lock.lock();
  }
}

void PointToPoint::add_remote(RemoteChannels& remote, const Topology& all) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int world_size = topology_.world_size;
  topology_ = all;
  topology_.world_size = world_size;
  remote_ = &remote;
  sends_.resize(all.pids.size());
  current_.resize(all.pids.size(), incoming_.end());
}

/// One of the two is this rank. Null: nothing was ever sent there.
Channel* PointToPoint::channel(int source, int destination) const {
  if (is_remote(destination)) return remote_->to(remote_of(destination));
  if (is_remote(source)) return remote_->from(remote_of(source));
  const auto world_size = static_cast<size_t>(topology_.world_size);
  const size_t index = static_cast<size_t>(source) * world_size + static_cast<size_t>(destination);
  return reinterpret_cast<Channel*>(channels_ + index * Channel::bytes_for(capacity_));
}

bool PointToPoint::is_gone(int peer) const {
  return is_remote(peer) ? remote_->is_gone(remote_of(peer)) : lockstep_.is_gone(peer);
}

/// The common beginning of send() and receive(). Needs mutex_.
void PointToPoint::begin() {
  if (failure_) std::rethrow_exception(failure_);
  start_helper();
  if (helper_idles_) helper_wanted_->notify_one();
}

std::shared_ptr<Transfer> PointToPoint::send(const Request& request) {
  auto operation = std::make_shared<Operation>(*this, request, "send");
  Lock lock(mutex_);
  begin();
  if (is_remote(request.peer)) remote_->open(remote_of(request.peer));
  sends_[static_cast<size_t>(request.peer)].push_back(operation);
  ++pending_;
  ++posts_;
  say_who_is_wanted();
  advance();
  tell_group(lock);
  return operation;
}

std::shared_ptr<Transfer> PointToPoint::receive(const Request& request) {
  auto operation = std::make_shared<Operation>(*this, request, "recv");
  Lock lock(mutex_);
  begin();
  // A connection, though nothing is sent over it: its end says that the peer has left.
  if (is_remote(request.peer) && channel(request.peer, topology_.rank) == nullptr) {
    remote_->open(remote_of(request.peer));
  }
  ++pending_;
  ++posts_;
  const auto message = std::find_if(incoming_.begin(), incoming_.end(), [&](const Incoming& each) {
    return !each.receive && each.has_envelope() && matches(*operation, each);
  });
  if (message == incoming_.end()) {
    receives_.push_back(operation);
  } else {
    attach(*message, operation);
    if (message->complete()) {
      deliver(*message);
      incoming_.erase(message);
    }
  }
  say_who_is_wanted();
  advance();
  tell_group(lock);
  return operation;
}

bool PointToPoint::matches(const Operation& receive, const Incoming& message) const {
  return receive.request.tag == message.envelope.tag &&
         (receive.other == kAnySource || receive.other == message.source);
}

/// Moves all bytes that can be moved now. Returns whether there were any. Needs mutex_.
bool PointToPoint::advance() {
  bool moved = false;
  for (int peer = 0; peer < peers() && !is_over(); ++peer) {
    moved = advance_sends(peer) || moved;
    moved = advance_receives(peer) || moved;
  }
  if (moved) ++moves_;
  return moved;
}

bool PointToPoint::advance_sends(int destination) {
  auto& queue = sends_[static_cast<size_t>(destination)];
  if (queue.empty()) return false;
  Channel& to = *channel(topology_.rank, destination);
  const size_t capacity = capacity_of(destination);
  size_t total = 0;
  for (const auto& send : queue) {
    if (send->end != 0) continue;
    const Envelope envelope{send->request.tag, send->request.bytes};
    const auto* head = reinterpret_cast<const std::byte*>(&envelope);
    size_t n =
        to.write(head + send->envelope_moved, sizeof(envelope) - send->envelope_moved, capacity);
    send->envelope_moved += n;
    total += n;
    if (send->envelope_moved < sizeof(envelope)) break;
    n = to.write(send->request.data + send->moved, send->request.bytes - send->moved, capacity);
    send->moved += n;
    total += n;
    if (send->moved < send->request.bytes) break;
    send->end = to.written.load(std::memory_order_relaxed);
  }
  bool has_finished = false;
  const auto is_done = [&](const Operation& send) {
    return send.end != 0 &&
           (!is_remote(destination) || to.read.load(std::memory_order_seq_cst) >= send.end);
  };
  while (!queue.empty() && is_done(*queue.front())) {
    finish(*queue.front(), nullptr);
    queue.pop_front();
    has_finished = true;
  }
  if (total != 0) ring_wanted(destination);
  return total != 0 || has_finished;
}

bool PointToPoint::advance_receives(int source) {
  Channel* const there = channel(source, topology_.rank);
  if (there == nullptr) return false;
  Channel& from = *there;
  const size_t capacity = capacity_of(source);
  auto& place = current_[static_cast<size_t>(source)];
  bool moved = false;
  size_t total = 0;
  while (from.readable() != 0 && total < capacity) {  // bounded: others need mutex_
    if (place == incoming_.end()) {
      incoming_.emplace_back();
      place = std::prev(incoming_.end());
      place->source = source;
    }
    Incoming& message = *place;
    if (!message.has_envelope()) {
      moved = true;
      if (!take_envelope(message)) break;
    }
    if (!message.receive && !message.kept && !message.complete() && !keep(message)) break;
    std::byte* to = message.place();
    const size_t taken = from.take(to == nullptr ? nullptr : to + message.moved,
                                   message.envelope.bytes - message.moved, capacity);
    message.moved += taken;
    total += taken;
    moved = moved || taken != 0;
    if (!message.complete()) continue;
    if (message.receive) {
      deliver(message);
      incoming_.erase(place);
    }
    place = incoming_.end();
  }
  if (moved) ring_wanted(source);
  return moved;
}

/// Returns whether the envelope is there, and looks whether a receive waits for it.
bool PointToPoint::take_envelope(Incoming& message) {
  auto* head = reinterpret_cast<std::byte*>(&message.envelope);
  message.envelope_moved +=
      channel(message.source, topology_.rank)
          ->take(head + message.envelope_moved, sizeof(Envelope) - message.envelope_moved,
                 capacity_of(message.source));
  if (!message.has_envelope()) return false;
  const auto receive = std::find_if(receives_.begin(), receives_.end(),
                                    [&](const auto& each) { return matches(*each, message); });
  if (receive == receives_.end()) return true;
  attach(message, *receive);
  receives_.erase(receive);
  return true;
}

/// Whether a message that nobody asked for stands in the way: of a receive of a later one, or of
/// peers, which may not receive what is sent to them before their own messages have left.
bool PointToPoint::must_keep(const Incoming& message) const {
  for (const auto& receive : receives_) {
    if (receive->other == kAnySource || receive->other == message.source) return true;
  }
  for (int peer = 0; peer < peers(); ++peer) {
    const bool sends = !sends_[static_cast<size_t>(peer)].empty();
    if (sends && channel(topology_.rank, peer)->writable(capacity_of(peer)) == 0) return true;
  }
  return false;
}

/// Gives the message memory in this process if it needs some. Returns whether it has some.
bool PointToPoint::keep(Incoming& message) {
  if (!must_keep(message)) return false;
  message.kept.reset(new (std::nothrow) std::byte[message.envelope.bytes]);
  if (message.kept) return true;
  const std::string what = topology_.name_of(topology_.rank) + " cannot keep a message of " +
                           std::to_string(message.envelope.bytes) + " bytes from " +
                           topology_.name_of(message.source) + " with tag " +
                           std::to_string(message.envelope.tag) + ".";
  fail_all(std::make_exception_ptr(CommError(
      "message-too-large", what, "there is not enough memory, and no receive is waiting for it.",
      "post the receive for a large message before receives for later messages.")));
  gave_up_ = what;
  return false;
}

/// Assigns the message to `receive`, with the bytes that have arrived.
void PointToPoint::attach(Incoming& message, const std::shared_ptr<Operation>& receive) {
  message.receive = receive;
  receive->note_peer(*this, message.source);
  if (message.kept && message.place() != nullptr) {
    std::memcpy(message.place(), message.kept.get(), message.moved);
  }
  message.kept.reset();
}

/// Completes the receive of a complete message.
void PointToPoint::deliver(Incoming& message) {
  Operation& receive = *message.receive;
  std::exception_ptr error;
  if (receive.request.bytes != message.envelope.bytes) {
    error =
        transfer_size_error(topology_, message.envelope.bytes,
                            {receive.request.bytes, message.source, receive.request.tag, "recv"});
  }
  finish(receive, error);
}

void PointToPoint::finish(Operation& operation, std::exception_ptr error) {
  operation.error = std::move(error);
  operation.done.store(true, std::memory_order_release);
  --pending_;
  if (const auto wake = std::exchange(operation.wake, nullptr)) wake();
  if (sleeping_ != 0) ring(doorbells_[topology_.rank], Doorbell::kWaiters);
}

void PointToPoint::ring(Doorbell& doorbell, Doorbell::Who who) {
  doorbell.rings_of(who).fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(doorbell.rings_of(who));
}

/// Wakes the threads of `rank` that wait for bytes, because bytes have moved between it and this
/// rank.
void PointToPoint::ring_wanted(int rank) {
  if (is_remote(rank)) return remote_->moved(remote_of(rank));
  ring_if_wanted(doorbells_[rank]);
}

void PointToPoint::ring_if_wanted(Doorbell& doorbell) {
  const auto who = static_cast<Doorbell::Who>(doorbell.wanted.load(std::memory_order_seq_cst));
  if (who != Doorbell::kNobody) ring(doorbell, who);
}

void PointToPoint::wake() { ring_if_wanted(*own_doorbell_); }

/// Tells peers whom to wake; nobody while a thread spins. Whoever calls this advances after it, for
/// what peers moved before they could see it. Needs mutex_.
void PointToPoint::say_who_is_wanted() {
  Doorbell::Who who = Doorbell::kNobody;
  if (spinning_ == 0 && sleeping_ != 0) {
    who = Doorbell::kWaiters;
  } else if (spinning_ == 0 && helper_sleeps_ && pending_ != 0) {
    who = Doorbell::kHelper;
  }
  if (who == wanted_) return;
  wanted_ = who;
  doorbells_[topology_.rank].wanted.store(who, std::memory_order_seq_cst);
}

/// Moves bytes for as long as there are any, and then for a while.
void PointToPoint::spin(const Operation& operation, Clock::time_point deadline, Lock& lock) {
  ++spinning_;
  say_who_is_wanted();
  auto end = Clock::now() + spin_;
  uint64_t moves = moves_;
  for (int looks = 0; !operation.done.load(std::memory_order_relaxed); ++looks) {
    const int pauses = advance() ? 0 : kPausesPerLook;
    lock.unlock();
    for (int i = 0; i < pauses; ++i) pause_core();
    lock.lock();
    if (looks % kLooksPerClock != 0) continue;
    const auto now = Clock::now();
    if (std::exchange(moves, moves_) != moves_) end = now + spin_;
    if (now >= end || now >= deadline) break;
    const int other = operation.other;
    if (other != kAnySource && !is_remote(other) && lockstep_.shares_core_with(other)) break;
  }
  --spinning_;
  say_who_is_wanted();
  if (wanted_ != Doorbell::kNobody) advance();
}

/// Sleeps at the doorbell until something moves, the operation is done or a look at the peers is
/// due. Returns whether something moved.
bool PointToPoint::sleep(Doorbell::Who who, const Operation* operation, microseconds limit,
                         Lock& lock) {
  Doorbell& own = doorbells_[topology_.rank];
  const uint64_t moves = moves_;
  if (who == Doorbell::kWaiters) {
    ++sleeping_;
  } else {
    helper_sleeps_ = true;
  }
  const uint32_t rings = own.rings_of(who).load(std::memory_order_seq_cst);
  say_who_is_wanted();
  advance();
  const bool over = operation != nullptr && operation->done.load(std::memory_order_relaxed);
  if (moves == moves_ && !over && !closing_ && !failure_ && gave_up_.empty()) {
    lock.unlock();
    futex_wait(own.rings_of(who), rings, limit);
    lock.lock();
  }
  if (who == Doorbell::kWaiters) {
    --sleeping_;
  } else {
    helper_sleeps_ = false;
  }
  say_who_is_wanted();
  advance();
  return moves != moves_;
}

/// Fails a receive that waits for a message of this rank itself, which cannot send while it waits.
/// Needs mutex_.
void PointToPoint::refuse_endless(Operation& operation) {
  const int own = topology_.rank;
  const bool is_alone = peers() == 1;
  if (operation.other != own && !(is_alone && operation.other == kAnySource)) return;
  const auto receive = std::find_if(receives_.begin(), receives_.end(),
                                    [&](const auto& each) { return each.get() == &operation; });
  const auto& sends = sends_[static_cast<size_t>(own)];
  const bool is_sent = std::any_of(sends.begin(), sends.end(), [&](const auto& each) {
    return each->request.tag == operation.request.tag;
  });
  if (receive == receives_.end() || is_sent) return;
  const auto kept = std::move(*receive);  // owns `operation`
  receives_.erase(receive);
  finish(operation, receive_from_itself_error(topology_, operation.request.tag));
}

/// Moves what can be moved now.
void PointToPoint::look(Lock& lock) {
  ++waiters_;  // ~PointToPoint() waits for this thread, which may let go of the mutex
  advance();
  tell_group(lock);
  --waiters_;
}

void PointToPoint::wait(Operation& operation, Clock::time_point begin, milliseconds timeout,
                        Lock& lock) {
  const auto deadline = begin + timeout;
  ++waiters_;
  lockstep_.note_core();
  advance();
  refuse_endless(operation);
  bool spins = spin_.count() != 0;
  bool was_interrupted = false;
  auto next_question = Clock::now() + kLivenessInterval;
  while (!operation.done.load(std::memory_order_relaxed)) {
    if (spins) spin(operation, deadline, lock);
    if (operation.done.load(std::memory_order_relaxed)) break;
    const auto left = std::chrono::duration_cast<microseconds>(deadline - Clock::now());
    const auto limit = std::clamp<microseconds>(left, microseconds(1), kLivenessInterval);
    spins = sleep(Doorbell::kWaiters, &operation, limit, lock) && spin_.count() != 0;
    if (Clock::now() >= next_look_) look_for_failures();
    if (Clock::now() >= deadline) fail_late(operation, timeout);
    if (!was_interrupted && Clock::now() >= next_question) {
      next_question = Clock::now() + kLivenessInterval;
      lock.unlock();  // the check may need a lock of another language, whose holder may need this
                      // one
      const bool is_asked_to_end = is_interrupted();
      lock.lock();
      if (is_asked_to_end) {
        was_interrupted = true;
        fail_interrupted(operation);
      }
    }
    tell_group(lock);
  }
  tell_group(lock);
  --waiters_;
  if (was_interrupted) throw interrupted_error("a wait for a transfer");
}

/// Ends the group because `operation` reached its timeout. Needs mutex_.
void PointToPoint::fail_late(const Operation& operation, milliseconds timeout) {
  if (operation.done.load(std::memory_order_relaxed)) return;
  const MessageText text{operation.request.bytes, operation.other, operation.request.tag,
                         operation.name};
  const std::string what = late_transfer_text(topology_, text, timeout.count());
  give_up(what, late_transfer_error(topology_, text, what));
}

/// Ends the group because the user has interrupted the wait for `operation`. Needs mutex_.
void PointToPoint::fail_interrupted(const Operation& operation) {
  if (operation.done.load(std::memory_order_relaxed)) return;
  const std::string subject = "a wait for a transfer on " + topology_.name_of(topology_.rank);
  give_up(interrupted_text(subject), std::make_exception_ptr(group_interrupted_error(subject)));
}

/// All transfers will fail with `error` once the group has been told why: see tell_group(). Needs
/// mutex_. `lost_rank`: see Lockstep::abort().
void PointToPoint::give_up(const std::string& why, std::exception_ptr error, int lost_rank) {
  if (is_over()) return;
  lost_rank_ = lost_rank;
  gave_up_ = topology_.name_of(topology_.rank) + " gave up: " + why;
  error_ = std::move(error);
}

/// Tells the group if this rank gave up, then fails all transfers. Whoever is called before an
/// abort finds no lock and no transfer failed yet.
void PointToPoint::tell_group(Lock& lock) {
  if (gave_up_.empty()) return;
  const std::string reason = std::exchange(gave_up_, "");
  lock.unlock();
  lockstep_.abort(reason, lost_rank_);
  lock.lock();
  fail_all(error_);
}

/// Fails all transfers if a peer of one of them has ended. Needs mutex_.
void PointToPoint::look_for_failures() {
  next_look_ = Clock::now() + kLivenessInterval;
  if (is_over()) return;
  try {
    lockstep_.check_peers();
  } catch (const CommError&) {
    fail_all(std::current_exception());
    return;
  }
  std::vector<bool> gone_peers(sends_.size());
  int others_left = 0;
  for (int peer = 0; peer < peers(); ++peer) {
    if (peer == topology_.rank) continue;
    gone_peers[static_cast<size_t>(peer)] = is_gone(peer);
    if (!gone_peers[static_cast<size_t>(peer)]) ++others_left;
  }
  advance();  // messages that a peer sent before it ended are received
  const auto lost = [&](int peer) { return gone_peers[static_cast<size_t>(peer)]; };
  int gone = -1;
  for (int peer = 0; peer < peers(); ++peer) {
    if (!sends_[static_cast<size_t>(peer)].empty() && lost(peer)) gone = peer;
  }
  for (const auto& receive : receives_) {
    if (receive->other != kAnySource && lost(receive->other)) gone = receive->other;
    const bool nobody_left = receive->other == kAnySource && others_left == 0;
    if (nobody_left && peers() > 1) gone = topology_.rank == 0 ? 1 : 0;
  }
  for (const Incoming& message : incoming_) {
    if (message.receive && lost(message.source)) gone = message.source;
  }
  if (gone < 0) return;
  const std::string what = cut_off_transfer_text(topology_, gone);
  give_up(what, cut_off_transfer_error(topology_, gone, what), topology_.rank_in_group(gone));
}

void PointToPoint::fail_all(const std::exception_ptr& error) {
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

/// Starts the helper thread, for the first transfer and before it is queued: if the thread cannot
/// start, nothing has changed.
void PointToPoint::start_helper() {
  if (helper_.joinable()) return;
  helper_ = start_thread("farandole p2p", "transfers", [this] { help(); });
}

/// Wakes the helper at once. Needs mutex_.
void PointToPoint::ask_helper() {
  helper_asked_ = true;
  helper_wanted_->notify_one();
}

/// The helper thread.
void PointToPoint::help() {
  Lock lock(mutex_);
  uint64_t seen = 0;
  int idle_looks = 0;
  while (!closing_) {
    const bool settled = std::exchange(seen, posts_) == posts_ || helper_asked_;
    if (pending_ != 0 && waiters_ == 0 && settled) {
      idle_looks = 0;
      sleep(Doorbell::kHelper, nullptr, kLivenessInterval, lock);
      if (Clock::now() >= next_look_) look_for_failures();
      tell_group(lock);
      continue;
    }
    if (pending_ == 0) helper_asked_ = false;
    idle_looks = pending_ == 0 && settled ? idle_looks + 1 : 0;
    if (idle_looks >= kIdleLooks) {
      helper_idles_ = true;
      helper_wanted_->wait(lock, [this] { return closing_ || pending_ != 0; });
      helper_idles_ = false;
      idle_looks = 0;
    } else {
      helper_wanted_->wait_for(lock, kHelperInterval,
                               [this] { return closing_ || (helper_asked_ && waiters_ == 0); });
    }
  }
}

}  // namespace farandole::comm::shm
