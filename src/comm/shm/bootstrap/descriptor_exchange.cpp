// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/bootstrap/descriptor_exchange.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "comm/presence.h"
#include "comm/process_stat.h"
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

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kSocketFix = "check whether a sandbox forbids Unix sockets.";
/// Silent connections that are kept beside those of ranks.
constexpr size_t kStrangers = 16;

milliseconds left_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
  return std::max(left, milliseconds(0));
}

/// An abstract address: it has no file, so nothing stays behind. At most 108 bytes.
socklen_t address_of(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Descriptor make_socket(int flags = 0) {
  Descriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
  if (!fd.valid()) throw_errno("making a Unix socket", kSocketFix);
  return fd;
}

bool same_user(int socket_fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == ::getuid();
}

/// As poll(), whatever signals come.
int poll_within(std::vector<pollfd>* entries, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (true) {
    const auto left = std::min<int64_t>(left_until(deadline).count(), 1 << 30);
    const int ready = ::poll(entries->data(), entries->size(), static_cast<int>(left));
    if (ready >= 0 || errno != EINTR) return ready;
  }
}

bool readable_within(int fd, milliseconds timeout) {
  std::vector<pollfd> entry{{fd, POLLIN, 0}};
  return poll_within(&entry, timeout) == 1;
}

/// Whether somebody calls, and which callers have said something or hung up. False if nothing came.
bool find_readable(int listener, const std::vector<Descriptor>& callers, milliseconds timeout,
                   bool* is_called, std::vector<size_t>* speaking) {
  std::vector<pollfd> entries;
  entries.reserve(1 + callers.size());
  entries.push_back({listener, POLLIN, 0});
  for (const Descriptor& caller : callers) entries.push_back({caller.get(), POLLIN, 0});
  if (poll_within(&entries, timeout) <= 0) return false;
  *is_called = entries[0].revents != 0;
  for (size_t i = 1; i < entries.size(); ++i) {
    if (entries[i].revents != 0) speaking->push_back(i - 1);
  }
  return true;
}

/// A message to send or to be received, and room for the most descriptors that go with it.
struct Packet {
  Packet(void* data, size_t bytes) : part{data, bytes} {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }

  iovec part;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxRanks)] = {};
  msghdr header{};
};

void attach(Packet* packet, const std::vector<int>& fds) {
  packet->header.msg_controllen = fds.empty() ? 0 : CMSG_SPACE(sizeof(int) * fds.size());
  if (fds.empty()) return;
  cmsghdr* rights = CMSG_FIRSTHDR(&packet->header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
  std::memcpy(CMSG_DATA(rights), fds.data(), sizeof(int) * fds.size());
}

std::vector<Descriptor> detach(Packet* packet) {
  std::vector<Descriptor> fds;
  msghdr* header = &packet->header;
  for (cmsghdr* part = CMSG_FIRSTHDR(header); part != nullptr; part = CMSG_NXTHDR(header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

/// Sends, or finds the peer gone, which whoever waits for it will tell. False if too many
/// descriptors were under way all the time.
bool send_within(int socket_fd, const Packet& packet, milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  while (::sendmsg(socket_fd, &packet.header, MSG_NOSIGNAL) < 0) {
    if (errno == EPIPE || errno == ECONNRESET) return true;
    if (errno != ETOOMANYREFS && errno != EINTR) {
      throw_errno("sending a descriptor to a peer", kSocketFix);
    }
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

/// Receives one message; false at end of file or for a message of another shape.
bool receive_whole(int socket_fd, Packet* packet, std::vector<Descriptor>* fds) {
  const ssize_t size =
      retried([&] { return ::recvmsg(socket_fd, &packet->header, MSG_CMSG_CLOEXEC); });
  if (size <= 0) return false;
  *fds = detach(packet);
  if (size != static_cast<ssize_t>(packet->part.iov_len)) return false;
  if ((packet->header.msg_flags & MSG_CTRUNC) != 0) {
    throw_errno("receiving descriptors from a peer", kSocketFix, EMFILE);
  }
  return true;
}

}  // namespace

DescriptorExchange::DescriptorExchange(const Topology& topology) : topology_(topology) {}

void DescriptorExchange::send(int peer, const Message& message, const std::vector<int>& fds,
                              const Await& await) {
  Packet packet(const_cast<Message*>(&message), sizeof(message));  // read alone
  attach(&packet, fds);
  const int socket_fd = sockets_[static_cast<size_t>(peer)].get();
  await({peer}, [&](milliseconds limit) { return send_within(socket_fd, packet, limit); });
}

std::vector<Descriptor> DescriptorExchange::receive(int peer, Message* message,
                                                    const Await& await) {
  const int socket_fd = sockets_[static_cast<size_t>(peer)].get();
  await({peer}, [&](milliseconds limit) { return readable_within(socket_fd, limit); });
  Packet packet(message, sizeof(*message));
  std::vector<Descriptor> fds;
  if (receive_whole(socket_fd, &packet, &fds)) return fds;
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
  sockaddr_un address{};
  if (topology_.rank == 0) {
    const std::string token = random_token();
    const socklen_t size = address_of("farandole-" + token, &address);
    const Descriptor listener = make_socket(SOCK_NONBLOCK);
    if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(listener.get(), kMaxRanks) != 0) {
      throw_errno("listening on a Unix socket", kSocketFix);
    }
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
  const socklen_t size = address_of("farandole-" + token, &address);
  Descriptor hub = make_socket();
  const bool reached = retried([&] {
                         return ::connect(hub.get(), reinterpret_cast<sockaddr*>(&address), size);
                       }) == 0;
  const bool trusted = reached && same_user(hub.get()) && is_process_of(hub.get(), 0);
  if (reached && !trusted) errno = EPERM;
  if (!trusted) {
    throw_errno("connecting to the Unix socket of " + topology_.describe(0),
                "run the ranks of one host as one user and in one network namespace; ranks of "
                "several hosts are not supported in this version.");
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
    if (is_called) accept_caller(listener, &callers);
  }
}

/// Takes one more caller; the one that has been silent for longest makes room.
void DescriptorExchange::accept_caller(int listener, std::vector<Descriptor>* callers) const {
  const auto most = static_cast<size_t>(topology_.world_size) + kStrangers;
  if (callers->size() >= most) callers->erase(callers->begin());
  Descriptor caller(retried([&] { return ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC); }));
  if (caller.valid()) {
    if (same_user(caller.get())) callers->push_back(std::move(caller));
    return;
  }
  const bool is_full = errno == EMFILE || errno == ENFILE;
  if (errno == ECONNABORTED || errno == EAGAIN) return;
  if (!is_full || callers->empty()) throw_errno("accepting a peer's connection", kSocketFix);
  callers->erase(callers->begin());
}

/// The rank that has called; 0 for a stranger.
int DescriptorExchange::identify(const Descriptor& caller, const std::string& token) const {
  Message hello{};
  Packet packet(&hello, sizeof(hello));
  std::vector<Descriptor> none;
  if (!receive_whole(caller.get(), &packet, &none) ||
      std::memcmp(hello.token, token.data(), kTokenBytes) != 0) {
    return 0;
  }
  const bool is_rank = hello.rank >= 1 && hello.rank < topology_.world_size;
  return is_rank && is_process_of(caller.get(), hello.rank) ? hello.rank : 0;
}

/// Whether the process behind a socket is that of `rank`, as far as this namespace can tell.
bool DescriptorExchange::is_process_of(int socket_fd, int rank) const {
  const auto index = static_cast<size_t>(rank);
  if (!is_in_own_pid_namespace(topology_.processes[index])) return true;
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.pid == topology_.pids[index];
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
  if (own.valid()) all[0] = Descriptor(::fcntl(own.get(), F_DUPFD_CLOEXEC, 0));
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
