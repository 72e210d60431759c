// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/peer_user.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

namespace farandole::comm::tcp {
namespace {

/// Addresses as these files have them: words of the machine's byte order, then the port.
struct Names {
  std::string four;  ///< in /proc/net/tcp; empty: it is not there
  std::string six;   ///< in /proc/net/tcp6
};

std::string text_of(const unsigned char* bytes, size_t size, uint16_t port) {
  std::string text;
  char digits[16];
  for (size_t i = 0; i < size; i += sizeof(uint32_t)) {
    uint32_t word = 0;
    std::memcpy(&word, bytes + i, sizeof(word));
    std::snprintf(digits, sizeof(digits), "%08X", word);
    text += digits;
  }
  std::snprintf(digits, sizeof(digits), ":%04X", static_cast<unsigned>(ntohs(port)));
  return text + digits;
}

Names names_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address);
    // A socket of IPv6 that has connected to an address of IPv4 is among those of IPv6.
    unsigned char mapped[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    std::memcpy(mapped + 12, &in.sin_addr, sizeof(in.sin_addr));
    return {text_of(mapped + 12, 4, in.sin_port), text_of(mapped, sizeof(mapped), in.sin_port)};
  }
  const auto& in = reinterpret_cast<const sockaddr_in6&>(address);
  const unsigned char* bytes = in.sin6_addr.s6_addr;
  const bool is_four = IN6_IS_ADDR_V4MAPPED(&in.sin6_addr);
  return {is_four ? text_of(bytes + 12, 4, in.sin6_port) : "",
          text_of(bytes, sizeof(in.sin6_addr), in.sin6_port)};
}

PeerUser look_into(const char* file, const std::string& local, const std::string& remote) {
  if (local.empty() || remote.empty()) return PeerUser::kUnknown;
  std::ifstream lines(file);
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::string skipped;
    std::string from;
    std::string to;
    if (!(fields >> skipped >> from >> to) || from != local || to != remote) continue;
    uint64_t uid = 0;
    uint64_t inode = 0;
    // The state, queues, timers, retransmissions; the user; timeouts; the inode.
    if (!(fields >> skipped >> skipped >> skipped >> skipped >> uid >> skipped >> inode)) continue;
    if (inode == 0) return PeerUser::kUnknown;  // nobody holds it, and its user is told as root
    return uid == ::geteuid() ? PeerUser::kSame : PeerUser::kOther;
  }
  return PeerUser::kUnknown;
}

}  // namespace

PeerUser user_of_peer(int socket) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_size = sizeof(own);
  socklen_t peer_size = sizeof(peer);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_size) != 0 ||
      ::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0) {
    return PeerUser::kUnknown;
  }
  const Names remote = names_of(own);  // as the other end sees it
  const Names local = names_of(peer);
  const PeerUser found = look_into("/proc/net/tcp", local.four, remote.four);
  return found != PeerUser::kUnknown ? found : look_into("/proc/net/tcp6", local.six, remote.six);
}

}  // namespace farandole::comm::tcp
