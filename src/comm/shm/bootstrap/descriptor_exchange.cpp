// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/bootstrap/descriptor_exchange.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "comm/closed_descriptor.h"
#include "comm/presence.h"
#include "comm/shm/bootstrap/unix_socket.h"
#include "comm/shm/system/reason.h"
#include "comm/shm/system/system_call.h"

namespace farandole::comm::shm {

constexpr size_t kTokenBytes = 32;  ///< hexadecimal digits of 128 random bits

/// One message of the exchange. Descriptors travel beside it, for the set bits of `present` in
/// order.
struct DescriptorExchange::Message {
  char token[kTokenBytes];
  int32_t rank;
  int32_t failed;  ///< 1: `text` says why there is no descriptor
  uint8_t present[kMaxRanks];
  char text[512];
};

namespace {

using std::chrono::milliseconds;

/// Silent connections that are kept beside those of ranks.
constexpr size_t kStrangers = 16;

}  // namespace

DescriptorExchange::DescriptorExchange(const Topology& topology) : topology_(topology) {}

/// Throws if the program has closed it.
int DescriptorExchange::socket_to(int peer) const {
  const Descriptor& socket = sockets_[static_cast<size_t>(peer)];
  if (!socket.is_intact()) throw closed_descriptor_error(topology_.name_of(topology_.rank));
  return socket.get();
}

void DescriptorExchange::send(int peer, const Message& message, const std::vector<int>& fds,
                              const Await& await) {
  const int socket_fd = socket_to(peer);
  await({peer}, [&](milliseconds limit) {
    return send_within(socket_fd, &message, sizeof(message), fds, limit);
  });
}

std::vector<Descriptor> DescriptorExchange::receive(int peer, Message* message,
                                                    const Await& await) {
  const int socket_fd = socket_to(peer);
  await({peer}, [&](milliseconds limit) { return readable_within(socket_fd, limit); });
  std::vector<Descriptor> fds;
  if (receive_whole(socket_fd, message, sizeof(*message), &fds)) return fds;
  // The peer has closed its socket. What it told, or how it ended, says more, perhaps in a moment.
  int looks = 0;
  await({peer}, [&](milliseconds limit) {
    if (limit.count() == 0) return false;  // asked once its end is known
    if (++looks > 1) std::this_thread::sleep_for(limit);
    return looks > 3;
  });
  throw PeerFailure("peer-disconnected",
                    topology_.describe(peer) + " disconnected while shared memory was set up.",
                    "its socket closed.", "look at that rank's own output.",
                    topology_.fault_of({peer}));
}

void DescriptorExchange::connect(Bootstrap& bootstrap) {
  if (topology_.world_size == 1) return;
  const std::string name = "exchange";
  if (topology_.rank == 0) {
    const std::string token = random_token();
    const Descriptor listener = listen_as("farandole-" + token);
    bootstrap.set(name, token);
    return accept_peers(listener.get(), token, bootstrap);
  }
  const std::string token = bootstrap.get(name);
  if (token.size() != kTokenBytes) {
    throw CommError(
        "foreign-store",
        "group '" + bootstrap.group() + "' did not form: the store holds no token of the group.",
        "the key " + bootstrap.key(name) + " has a value of " + std::to_string(token.size()) +
            " bytes.",
        "use a separate store for each job.");
  }
  Descriptor hub = connect_to("farandole-" + token);
  const bool trusted =
      hub.valid() && same_user(hub.get()) && is_process_of(hub.get(), 0, topology_);
  if (hub.valid() && !trusted) errno = EPERM;
  if (!trusted) {
    throw_errno("connecting to the Unix socket of " + topology_.describe(0),
                "run the ranks of one host as one user and in one network namespace, or use "
                "backend 'tcp'.");
  }
  sockets_.push_back(std::move(hub));
  Message hello{};
  std::memcpy(hello.token, token.data(), kTokenBytes);
  hello.rank = topology_.rank;
  send(0, hello, {},
       [&](const std::vector<int>& peers, const Ready& ready) { bootstrap.await(peers, ready); });
}

/// Serves connections as they say something: one that is silent, or another's, holds up nobody.
void DescriptorExchange::accept_peers(int listener, const std::string& token,
                                      Bootstrap& bootstrap) {
  sockets_.resize(static_cast<size_t>(topology_.world_size));
  std::vector<Descriptor> callers;  // that have not shown the token yet
  while (true) {
    std::vector<int> absent;
    for (int peer = 1; peer < topology_.world_size; ++peer) {
      if (!sockets_[static_cast<size_t>(peer)].valid()) absent.push_back(peer);
    }
    if (absent.empty()) return;
    std::vector<size_t> speaking;
    bool is_called = false;
    bootstrap.await(absent, [&](milliseconds limit) {
      return find_readable(listener, callers, limit, &is_called, &speaking);
    });
    for (auto index = speaking.rbegin(); index != speaking.rend(); ++index) {
      Descriptor caller = std::move(callers[*index]);
      callers.erase(callers.begin() + static_cast<std::ptrdiff_t>(*index));
      const int rank = identify(caller, token);
      if (rank > 0) sockets_[static_cast<size_t>(rank)] = std::move(caller);
    }
    const auto is_awaited = [&](int socket_fd) {
      return std::any_of(absent.begin(), absent.end(),
                         [&](int peer) { return is_process_of(socket_fd, peer, topology_); });
    };
    if (is_called) accept_caller(listener, sockets_.size() + kStrangers, is_awaited, &callers);
  }
}

/// The rank that has called; 0 for a stranger.
int DescriptorExchange::identify(const Descriptor& caller, const std::string& token) const {
  Message hello{};
  std::vector<Descriptor> none;
  if (!receive_whole(caller.get(), &hello, sizeof(hello), &none) ||
      std::memcmp(hello.token, token.data(), kTokenBytes) != 0) {
    return 0;
  }
  const bool is_rank = hello.rank >= 1 && hello.rank < topology_.world_size;
  return is_rank && is_process_of(caller.get(), hello.rank, topology_) ? hello.rank : 0;
}

std::vector<Descriptor> DescriptorExchange::all_gather(const Descriptor& own, const Await& await) {
  const auto world = static_cast<size_t>(topology_.world_size);
  std::vector<Descriptor> all(world);
  Message message{};
  if (topology_.rank != 0) {
    std::vector<int> mine;
    if (own.valid()) mine.push_back(own.get());
    send(0, message, mine, await);
    std::vector<Descriptor> fds = receive(0, &message, await);
    size_t next = 0;
    for (size_t rank = 0; rank < world && next < fds.size(); ++rank) {
      if (message.present[rank] != 0) all[rank] = std::move(fds[next++]);
    }
    return all;
  }
  if (own.valid()) all[0] = Descriptor(::fcntl(own.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  Message summary{};
  std::vector<int> raw;
  for (size_t rank = 0; rank < world; ++rank) {
    if (rank != 0) {
      std::vector<Descriptor> fds = receive(static_cast<int>(rank), &message, await);
      if (!fds.empty()) all[rank] = std::move(fds[0]);
    }
    if (!all[rank].valid()) continue;
    summary.present[rank] = 1;
    raw.push_back(all[rank].get());
  }
  for (int rank = 1; rank < topology_.world_size; ++rank) send(rank, summary, raw, await);
  return all;
}

Descriptor DescriptorExchange::broadcast(const std::function<Descriptor()>& make,
                                         const Await& await) {
  Message message{};
  Descriptor result;
  std::exception_ptr own_error;
  if (topology_.rank == 0) {
    std::vector<int> fds;
    try {
      result = make();
      fds.push_back(result.get());
    } catch (const Error& error) {
      own_error = std::current_exception();
      message.failed = 1;
      std::snprintf(message.text, sizeof(message.text), "%s", reason_of(error.what()).c_str());
    }
    for (int peer = 1; peer < topology_.world_size; ++peer) {
      try {
        send(peer, message, fds, await);
      } catch (const SystemError& error) {  // some have it and some wait: nobody can go on
        throw PeerFailure("memory-not-delivered",
                          "shared memory did not reach " + topology_.describe(peer) + ".",
                          reason_of(error.what()), kSocketFix, topology_.fault_of({peer}));
      }
    }
  } else {
    std::vector<Descriptor> fds = receive(0, &message, await);
    if (!fds.empty()) result = std::move(fds[0]);
  }
  if (message.failed == 0) return result;
  if (own_error) std::rethrow_exception(own_error);
  throw SystemError("memory-failed-on-rank-0",
                    "shared memory could not be created by " + topology_.describe(0) + ".",
                    message.text, "see the error of that rank, which says how to fix it.");
}

void DescriptorExchange::meet(const Await& await) {
  Message message{};
  if (topology_.rank != 0) {
    send(0, message, {}, await);
    receive(0, &message, await);
    return;
  }
  for (int peer = 1; peer < topology_.world_size; ++peer) receive(peer, &message, await);
  for (int peer = 1; peer < topology_.world_size; ++peer) send(peer, message, {}, await);
}

}  // namespace farandole::comm::shm
