// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/descriptor_exchange.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>

#include "comm/shm/system_call.h"

namespace farandole::comm::shm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kSocketFix = "see whether the sandbox forbids Unix sockets.";
constexpr size_t kTokenBytes = 32;  ///< hexadecimal digits of 128 random bits

/// One message of the exchange. Descriptors travel beside it, for the set bits of `present` in
/// order.
struct Message {
  char token[kTokenBytes];
  int32_t rank;
  int32_t failed;  ///< 1: `text` says why there is no descriptor
  uint8_t present[kMaxRanks];
  char text[512];
};

milliseconds left_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
  return std::max(left, milliseconds(0));
}

std::string random_token() {
  std::array<unsigned char, kTokenBytes / 2> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw_errno("getrandom", "see whether the sandbox forbids it.");
  }
  std::string token;
  for (const unsigned char byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", byte);
    token += digits;
  }
  return token;
}

/// An abstract address: it has no file, so nothing stays behind. At most 108 bytes.
socklen_t address_of(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Descriptor make_socket() {
  Descriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid()) throw_errno("making a Unix socket", kSocketFix);
  return fd;
}

bool same_user(int socket_fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == ::getuid();
}

bool readable_within(int fd, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (true) {
    pollfd entry{fd, POLLIN, 0};
    const auto left = std::min<int64_t>(left_until(deadline).count(), 1 << 30);
    const int ready = ::poll(&entry, 1, static_cast<int>(left));
    if (ready >= 0 || errno != EINTR) return ready == 1;
  }
}

/// Room for the most descriptors that one message carries.
struct alignas(cmsghdr) ControlBuffer {
  char bytes[CMSG_SPACE(sizeof(int) * kMaxRanks)];
};

/// Sends `message` with the descriptors `fds`. A peer that is gone is found by whoever waits for
/// it.
void send_message(int socket_fd, const Message& message, const std::vector<int>& fds) {
  iovec data{const_cast<Message*>(&message), sizeof(message)};
  ControlBuffer control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.bytes;
    header.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(rights), fds.data(), sizeof(int) * fds.size());
  }
  if (::sendmsg(socket_fd, &header, MSG_NOSIGNAL) < 0 && errno != EPIPE && errno != ECONNRESET) {
    throw_errno("sending a descriptor to a peer", kSocketFix);
  }
}

/// Receives one message; false at end of file or for a message of another shape.
bool receive_message(int socket_fd, Message* message, std::vector<Descriptor>* fds) {
  iovec data{message, sizeof(*message)};
  ControlBuffer control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control.bytes;
  header.msg_controllen = sizeof(control.bytes);
  const ssize_t size = ::recvmsg(socket_fd, &header, MSG_CMSG_CLOEXEC);
  if (size != static_cast<ssize_t>(sizeof(*message))) return false;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      fds->emplace_back(fd);
    }
  }
  return (header.msg_flags & MSG_CTRUNC) == 0;
}

void set_failure(Message* message, const std::string& text) {
  message->failed = 1;
  std::snprintf(message->text, sizeof(message->text), "%s", text.c_str());
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

DescriptorExchange::DescriptorExchange(Store& store, const std::string& group,
                                       const Topology& topology, milliseconds timeout)
    : group_(group), topology_(topology) {
  if (topology_.world_size == 1) return;
  if (topology_.rank == 0) {
    listen_and_accept(store, timeout);
  } else {
    connect_to_hub(store, timeout);
  }
}

std::string DescriptorExchange::key() const { return "farandole/" + group_ + "/exchange"; }

void DescriptorExchange::listen_and_accept(Store& store, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const std::string token = random_token();
  sockaddr_un address{};
  const socklen_t size = address_of("farandole-" + token, &address);
  Descriptor listener = make_socket();
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(listener.get(), kMaxRanks) != 0) {
    throw_errno("listening on a Unix socket", kSocketFix);
  }
  store.set(key(), token);
  sockets_.resize(static_cast<size_t>(topology_.world_size));
  for (int missing = topology_.world_size - 1; missing > 0;) {
    if (Clock::now() > deadline || !readable_within(listener.get(), left_until(deadline))) {
      std::string names;
      for (int peer = 1; peer < topology_.world_size; ++peer) {
        if (sockets_[static_cast<size_t>(peer)].valid()) continue;
        names += (names.empty() ? "" : ", ") + topology_.describe(peer);
      }
      throw TimeoutError("group '" + group_ + "' did not form: " + names + " did not connect.",
                         "nothing came within " + std::to_string(timeout.count()) + " ms.",
                         "look at that rank's own output; it started but stopped on its way here.");
    }
    Descriptor peer(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!peer.valid() && errno != EINTR && errno != ECONNABORTED) {
      throw_errno("accepting a peer's connection", "raise the limit of open files (ulimit -n).");
    }
    Message hello{};
    std::vector<Descriptor> none;
    if (!peer.valid() || !same_user(peer.get()) ||
        !readable_within(peer.get(), left_until(deadline)) ||
        !receive_message(peer.get(), &hello, &none) ||
        std::memcmp(hello.token, token.data(), kTokenBytes) != 0 || hello.rank < 1 ||
        hello.rank >= topology_.world_size) {
      continue;  // a stranger
    }
    Descriptor& place = sockets_[static_cast<size_t>(hello.rank)];
    if (!place.valid()) --missing;
    place = std::move(peer);
  }
}

void DescriptorExchange::connect_to_hub(Store& store, milliseconds timeout) {
  const auto token = store.get(key(), timeout);
  if (!token) {
    throw TimeoutError("group '" + group_ + "' did not form: " + topology_.describe(0) +
                           " did not open the group's socket.",
                       "nothing came within " + std::to_string(timeout.count()) + " ms.",
                       "look at rank 0's own output; it started but stopped on its way here.");
  }
  if (token->size() != kTokenBytes) {
    throw CommError(
        "group '" + group_ + "' did not form: the store holds no token of it.",
        "the key " + key() + " has a value of " + std::to_string(token->size()) + " bytes.",
        "give each job a store of its own.");
  }
  sockaddr_un address{};
  const socklen_t size = address_of("farandole-" + *token, &address);
  Descriptor hub = make_socket();
  if (::connect(hub.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      !same_user(hub.get())) {
    throw_errno("connecting to the Unix socket of " + topology_.describe(0),
                "run the ranks of one host as one user and in one network namespace; ranks of "
                "several hosts are not supported in this version.");
  }
  Message hello{};
  std::memcpy(hello.token, token->data(), kTokenBytes);
  hello.rank = topology_.rank;
  send_message(hub.get(), hello, {});
  sockets_.push_back(std::move(hub));
}

std::vector<Descriptor> DescriptorExchange::all_gather(const Descriptor& own,
                                                       milliseconds timeout) {
  const auto world = static_cast<size_t>(topology_.world_size);
  Message message{};
  std::vector<Descriptor> all(world);
  const auto receive = [&](size_t socket, int from) {
    std::vector<Descriptor> fds;
    if (!readable_within(sockets_[socket].get(), timeout) ||
        !receive_message(sockets_[socket].get(), &message, &fds)) {
      throw PeerFailure(
          "group '" + group_ + "' did not form: " + topology_.describe(from) + " went away.",
          "its socket closed or stayed silent for " + std::to_string(timeout.count()) + " ms.",
          "look at that rank's own output.");
    }
    return fds;
  };
  if (topology_.rank != 0) {
    message.present[topology_.rank] = own.valid() ? 1 : 0;
    std::vector<int> mine;
    if (own.valid()) mine.push_back(own.get());
    send_message(sockets_[0].get(), message, mine);
    std::vector<Descriptor> fds = receive(0, 0);
    size_t next = 0;
    for (size_t rank = 0; rank < world && next < fds.size(); ++rank) {
      if (message.present[rank] != 0) all[rank] = std::move(fds[next++]);
    }
    return all;
  }
  Message summary{};
  std::vector<int> raw;
  for (size_t rank = 0; rank < world; ++rank) {
    if (rank == 0) {
      if (own.valid()) all[0] = Descriptor(::fcntl(own.get(), F_DUPFD_CLOEXEC, 0));
    } else {
      std::vector<Descriptor> fds = receive(rank, static_cast<int>(rank));
      if (!fds.empty()) all[rank] = std::move(fds[0]);
    }
    if (!all[rank].valid()) continue;
    summary.present[rank] = 1;
    raw.push_back(all[rank].get());
  }
  for (size_t rank = 1; rank < world; ++rank) send_message(sockets_[rank].get(), summary, raw);
  return all;
}

Descriptor DescriptorExchange::broadcast(const std::function<Descriptor()>& make,
                                         milliseconds timeout,
                                         const std::function<bool()>& peer_gone) {
  Message message{};
  if (topology_.rank == 0) {
    Descriptor made;
    try {
      made = make();
    } catch (const Error& error) {
      set_failure(&message, error.what());
    }
    std::vector<int> fds;
    if (made.valid()) fds.push_back(made.get());
    for (size_t peer = 1; peer < sockets_.size(); ++peer) {
      send_message(sockets_[peer].get(), message, fds);
    }
    if (message.failed != 0) {
      throw SystemError("shared memory could not be made in group '" + group_ + "'.",
                        first_line(message.text), "give the job more memory or ask for less.");
    }
    return made;
  }
  const auto deadline = Clock::now() + timeout;
  while (!readable_within(sockets_[0].get(), milliseconds(50))) {
    if (peer_gone() || Clock::now() > deadline) {
      throw PeerFailure(
          "group '" + group_ + "': " + topology_.describe(0) + " sent no shared memory.",
          "it ended or stayed silent.", "look at rank 0's own output.");
    }
  }
  std::vector<Descriptor> fds;
  if (!receive_message(sockets_[0].get(), &message, &fds) ||
      (message.failed == 0 && fds.size() != 1)) {
    throw PeerFailure(
        "group '" + group_ + "': " + topology_.describe(0) + " sent no shared memory.",
        "its socket closed.", "look at rank 0's own output.");
  }
  if (message.failed != 0) {
    throw SystemError("shared memory could not be made in group '" + group_ + "'.",
                      first_line(message.text), "give the job more memory or ask for less.");
  }
  return std::move(fds[0]);
}

}  // namespace farandole::comm::shm
