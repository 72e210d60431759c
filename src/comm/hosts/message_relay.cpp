// SPDX-License-Identifier: Apache-2.0
#include "comm/hosts/message_relay.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "comm/closed_descriptor.h"
#include "comm/shm/system/system_call.h"
#include "comm/start_thread.h"
#include "comm/tcp/tcp_stream.h"
#include "farandole/error.h"
#include "log.h"

namespace farandole::comm::hosts {
namespace {

/// Bytes of a channel. Like a socket's buffer: what is under way while both sides do other things.
constexpr size_t kCapacity = size_t{256} * 1024;
/// How often a half-made connection of a peer that has left is looked at, in milliseconds.
constexpr int kLookAgain = 20;
/// How often the thread looks whether it is to end, which nobody can tell it if the program has
/// closed its eventfd.
constexpr int kLongestSleep = 1000;

/// The whole of a small message, on a socket whose buffer has room for it; false: it has not.
bool send_at_once(int socket, const void* data, size_t bytes) {
  return ::send(socket, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
}

ssize_t receive_at_once(int socket, void* data, size_t bytes) {
  return shm::retried([&] { return ::recv(socket, data, bytes, MSG_DONTWAIT); });
}

}  // namespace

MessageRelay::MessageRelay(Options options) : options_(std::move(options)) {
  for (const int rank : options_.ranks) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->rank = rank;
  }
}

MessageRelay::~MessageRelay() { stop(); }

void MessageRelay::set_addresses(HostLink& link, std::vector<tcp::NetworkAddress> addresses) {
  link_ = &link;
  for (size_t i = 0; i < peers_.size(); ++i) peers_[i]->address = addresses[i];
}

void MessageRelay::FreeChannel::operator()(shm::Channel* channel) const {
  ::operator delete(channel, std::align_val_t(alignof(shm::Channel)));
}

MessageRelay::OwnedChannel MessageRelay::make_channel() {
  const size_t bytes = shm::Channel::bytes_for(kCapacity);
  void* const memory = ::operator new(bytes, std::align_val_t(alignof(shm::Channel)));
  return OwnedChannel(new (memory) shm::Channel());
}

size_t MessageRelay::capacity() const { return kCapacity; }

shm::Channel* MessageRelay::to(int peer) const {
  return peers_[static_cast<size_t>(peer)]->to.channel.load(std::memory_order_acquire);
}

shm::Channel* MessageRelay::from(int peer) const {
  return peers_[static_cast<size_t>(peer)]->from.channel.load(std::memory_order_acquire);
}

bool MessageRelay::is_gone(int peer) const {
  return peers_[static_cast<size_t>(peer)]->is_gone.load(std::memory_order_acquire);
}

void MessageRelay::open(int peer) {
  Way& way = peers_[static_cast<size_t>(peer)]->to;
  if (way.channel.load(std::memory_order_acquire) != nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  start();
  way.owned = make_channel();
  way.channel.store(way.owned.get(), std::memory_order_release);
  to_open_.push_back(peer);
  moved(peer);
}

void MessageRelay::accept(int rank, PrivateDescriptor socket) {
  const auto found = std::find_if(peers_.begin(), peers_.end(),
                                  [&](const auto& each) { return each->rank == rank; });
  if (found == peers_.end()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ends_) return;
  try {
    start();
  } catch (const Error& error) {
    options_.on_failure(error.what(), -1);
    return;
  }
  accepted_.emplace_back(static_cast<int>(found - peers_.begin()), std::move(socket));
  moved(0);
}

void MessageRelay::moved(int) { wake_.signal(); }

/// Needs mutex_.
void MessageRelay::start() {
  if (thread_.joinable()) return;
  thread_ = start_thread("farandole relay", "messages", [this] {
    try {
      run();
    } catch (const std::exception& error) {  // no memory, for a channel or for poll()
      options_.on_failure(std::string("messages cannot be carried: ") + error.what(), -1);
    }
  });
}

void MessageRelay::stop() {
  if (!fork_guard_.in_creator()) {  // the thread runs in the parent alone, and may hold the mutex
    keep_thread_of_parent(thread_);
    return;
  }
  std::thread thread;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
    thread.swap(thread_);
  }
  if (!thread.joinable()) return;
  moved(0);
  thread.join();
}

// ---- The thread

void MessageRelay::run() {
  std::vector<pollfd> set;
  while (true) {
    bool has_moved = false;
    for (const auto& peer : peers_) {
      advance_connection(*peer);
      has_moved |= send_some(*peer);
      has_moved |= receive_some(*peer);
    }
    if (has_moved) options_.on_moved();
    const bool looks_again = find_gone_peers();
    set = {{wake_.get(), POLLIN, 0}};
    for (const auto& peer : peers_) {
      const Way& to = peer->to;
      const bool writes = to.state == Way::State::kConnecting ||
                          (to.state == Way::State::kOpen && to.channel.load()->readable() != 0);
      if (to.socket.valid()) {
        set.push_back({to.socket.get(), static_cast<short>(writes ? POLLOUT : POLLIN), 0});
      }
      const Way& from = peer->from;
      if (from.socket.valid() && from.channel.load()->writable(kCapacity) != 0) {
        set.push_back({from.socket.get(), POLLIN, 0});
      }
    }
    const int limit = has_moved ? 0 : looks_again ? kLookAgain : kLongestSleep;
    const int ready = ::poll(set.data(), set.size(), limit);
    if (ready < 0 && errno != EINTR) shm::throw_errno("poll", "raise the limit of open files.");
    // Not while bytes move, which costs no system call more: poll() tells of a closed one at once.
    if ((ready == 0 || set[0].revents != 0) && !wake_.is_intact()) {
      throw closed_descriptor_error("rank " + std::to_string(options_.own_rank));
    }
    if (set[0].revents != 0) wake_.clear();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (ends_) return;
    }
    take_over();
  }
}

/// New connections, of both kinds.
void MessageRelay::take_over() {
  std::vector<int> to_open;
  std::vector<std::pair<int, PrivateDescriptor>> accepted;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    to_open.swap(to_open_);
    accepted.swap(accepted_);
  }
  for (const int peer : to_open) connect(*peers_[static_cast<size_t>(peer)]);
  for (auto& [peer, socket] : accepted) {
    Way& way = peers_[static_cast<size_t>(peer)]->from;
    if (way.state != Way::State::kNone) continue;  // a rank opens one
    way.socket = std::move(socket);
    way.state = Way::State::kOpen;
    way.owned = make_channel();
    way.channel.store(way.owned.get(), std::memory_order_release);
  }
}

void MessageRelay::connect(Peer& peer) {
  try {
    peer.to.socket = link_->begin_connection(peer.address, peer.rank, HostLink::kMessageLane);
    peer.to.state = Way::State::kConnecting;
  } catch (const Error& error) {
    fail(peer, error.what(), 0);
  }
}

/// Says hello on a new connection, waits for the answer, and proves to be a rank.
void MessageRelay::advance_connection(Peer& peer) {
  Way& way = peer.to;
  if (way.state == Way::State::kConnecting) {
    pollfd one{way.socket.get(), POLLOUT, 0};
    if (::poll(&one, 1, 0) <= 0) return;
    const int error = tcp::error_of_connect(way.socket.get());
    if (error != 0) return fail(peer, "the connection failed", error);
    way.hello = options_.identity.hello(HostLink::kMessageLane);
    if (!send_at_once(way.socket.get(), &way.hello, sizeof(way.hello))) {
      return fail(peer, "it took no greeting", errno);
    }
    way.state = Way::State::kGreeting;
  }
  if (way.state != Way::State::kGreeting) return;
  const ssize_t got =
      receive_at_once(way.socket.get(), reinterpret_cast<char*>(&way.answer) + way.answered,
                      sizeof(way.answer) - way.answered);
  if (got < 0 && errno == EAGAIN) return;
  if (got <= 0) return fail(peer, "it closed the connection", got < 0 ? errno : 0);
  way.answered += static_cast<size_t>(got);
  if (way.answered < sizeof(way.answer)) return;
  if (!options_.identity.is_right(way.answer, way.hello, peer.rank)) {
    return fail(peer, "its answer is not that of the rank", 0);
  }
  if (!options_.identity.allows_user_of(way.socket.get())) {
    return fail(peer, "another user listens there, and the job has no secret", 0);
  }
  const Digest proof = options_.identity.proof(way.hello, way.answer);
  if (!send_at_once(way.socket.get(), &proof, sizeof(proof))) {
    return fail(peer, "it did not accept the proof", errno);
  }
  way.state = Way::State::kOpen;
}

void MessageRelay::fail(Peer& peer, const std::string& what, int error) {
  std::string reason = "no connection for messages to " + peer.address.text() + ": " + what + ".";
  if (error != 0) {
    reason += std::string(" ") + std::strerror(error) + " (errno " + std::to_string(error) + ").";
  }
  log(LogLevel::kWarning, "rank " + std::to_string(options_.own_rank) + ", rank " +
                              std::to_string(peer.rank) + ": " + reason);
  end(peer.to);
}

bool MessageRelay::send_some(Peer& peer) {
  Way& way = peer.to;
  if (way.state != Way::State::kOpen) return false;
  shm::Channel& channel = *way.channel.load(std::memory_order_relaxed);
  bool has_ended = false;
  const size_t moved = channel.take_piece(kCapacity, [&](const std::byte* data, size_t bytes) {
    const ssize_t sent = shm::retried(
        [&] { return ::send(way.socket.get(), data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL); });
    if (sent < 0 && errno != EAGAIN) has_ended = true;
    return sent < 0 ? size_t{0} : static_cast<size_t>(sent);
  });
  if (!has_ended && channel.readable() == 0) {
    // The peer sends nothing here: all there is to read is the end.
    char byte = 0;
    const ssize_t got = receive_at_once(way.socket.get(), &byte, 1);
    has_ended = got == 0 || (got < 0 && errno != EAGAIN);
  }
  if (has_ended) end(way);
  return moved != 0 || has_ended;
}

bool MessageRelay::receive_some(Peer& peer) {
  Way& way = peer.from;
  if (way.state != Way::State::kOpen) return false;
  shm::Channel& channel = *way.channel.load(std::memory_order_relaxed);
  bool has_ended = false;
  const size_t moved = channel.write_piece(kCapacity, [&](std::byte* data, size_t bytes) {
    const ssize_t got = receive_at_once(way.socket.get(), data, bytes);
    if (got == 0 || (got < 0 && errno != EAGAIN)) has_ended = true;
    return got < 0 ? size_t{0} : static_cast<size_t>(got);
  });
  if (has_ended) end(way);
  return moved != 0 || has_ended;
}

/// Nothing more comes or goes this way: the peer has left or died.
void MessageRelay::end(Way& way) {
  way.state = Way::State::kEnded;
  way.socket.reset();
}

/// A peer that has left or died is gone when all that it has sent is in the channel from it. Its
/// connection may still be half made here. Returns whether it must be looked at again.
bool MessageRelay::find_gone_peers() {
  bool looks_again = false;
  for (const auto& each : peers_) {
    Peer& peer = *each;
    if (peer.is_gone.load(std::memory_order_relaxed)) continue;
    const bool has_ended =
        peer.to.state == Way::State::kEnded || peer.from.state == Way::State::kEnded;
    if (!has_ended || peer.from.state == Way::State::kOpen) continue;
    if (peer.from.state == Way::State::kNone) {
      if (link_->is_message_connection_pending(peer.rank)) {
        looks_again = true;
        continue;
      }
      take_over();  // a connection is accepted before it is no longer pending
      if (peer.from.state != Way::State::kNone) continue;
    }
    peer.is_gone.store(true, std::memory_order_release);
    options_.on_moved();
  }
  return looks_again;
}

}  // namespace farandole::comm::hosts
