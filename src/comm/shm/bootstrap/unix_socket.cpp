// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/bootstrap/unix_socket.h"

#include <poll.h>
#include <sys/un.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>

#include "comm/process_stat.h"
#include "comm/shm/system/system_call.h"

namespace farandole::comm::shm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

milliseconds left_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
  return std::max(left, milliseconds(0));
}

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

bool peer_of(int socket_fd, ucred* peer) {
  socklen_t size = sizeof(*peer);
  return ::getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, peer, &size) == 0;
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

}  // namespace

Descriptor listen_as(const std::string& name) {
  sockaddr_un address{};
  const socklen_t size = address_of(name, &address);
  Descriptor listener = make_socket(SOCK_NONBLOCK);
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(listener.get(), kMaxRanks) != 0) {
    throw_errno("listening on a Unix socket", kSocketFix);
  }
  return listener;
}

Descriptor connect_to(const std::string& name) {
  sockaddr_un address{};
  const socklen_t size = address_of(name, &address);
  Descriptor socket = make_socket();
  const auto connect = [&] {
    return ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), size);
  };
  if (retried(connect) == 0) return socket;
  const int error_number = errno;
  socket.reset();
  errno = error_number;
  return socket;
}

bool same_user(int socket_fd) {
  ucred peer{};
  return peer_of(socket_fd, &peer) && peer.uid == ::getuid();
}

bool is_process_of(int socket_fd, int rank, const Topology& topology) {
  const auto index = static_cast<size_t>(rank);
  if (!is_in_own_pid_namespace(topology.processes[index])) return true;
  ucred peer{};
  return peer_of(socket_fd, &peer) && peer.pid == topology.pids[index];
}

bool readable_within(int fd, milliseconds timeout) {
  std::vector<pollfd> entry{{fd, POLLIN, 0}};
  return poll_within(&entry, timeout) == 1;
}

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

void accept_caller(int listener, size_t most, const std::function<bool(int socket_fd)>& is_awaited,
                   std::vector<Descriptor>* callers) {
  const auto find_stranger = [&] {
    return std::find_if(callers->begin(), callers->end(),
                        [&](const Descriptor& caller) { return !is_awaited(caller.get()); });
  };
  if (callers->size() >= most) {
    const auto stranger = find_stranger();
    callers->erase(stranger == callers->end() ? callers->begin() : stranger);
  }
  Descriptor caller(retried([&] { return ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC); }));
  if (caller.valid()) {
    if (same_user(caller.get())) callers->push_back(std::move(caller));
    return;
  }
  const int error_number = errno;
  if (error_number == ECONNABORTED || error_number == EAGAIN) return;
  const bool is_full = error_number == EMFILE || error_number == ENFILE;
  const auto stranger = is_full ? find_stranger() : callers->end();
  if (stranger == callers->end()) {
    throw_errno("accepting a peer's connection", kSocketFix, error_number);
  }
  callers->erase(stranger);
}

bool send_within(int socket_fd, const void* message, size_t bytes, const std::vector<int>& fds,
                 milliseconds limit) {
  Packet packet(const_cast<void*>(message), bytes);  // only read
  attach(&packet, fds);
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

bool receive_whole(int socket_fd, void* message, size_t bytes, std::vector<Descriptor>* fds) {
  Packet packet(message, bytes);
  const ssize_t size =
      retried([&] { return ::recvmsg(socket_fd, &packet.header, MSG_CMSG_CLOEXEC); });
  if (size <= 0) return false;
  *fds = detach(&packet);
  if (size != static_cast<ssize_t>(bytes)) return false;
  const bool has_all =
      (packet.header.msg_flags & MSG_CTRUNC) == 0 &&
      std::all_of(fds->begin(), fds->end(), [](const Descriptor& each) { return each.valid(); });
  if (!has_all) {
    throw_errno("receiving descriptors from a peer", kSocketFix, EMFILE);
  }
  return true;
}

}  // namespace farandole::comm::shm
