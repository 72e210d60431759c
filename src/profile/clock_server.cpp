// SPDX-License-Identifier: Apache-2.0
#include "profile/clock_server.h"

#include <cerrno>
#include <random>
#include <system_error>

#include "comm/tcp/network_address.h"
#include "farandole/error.h"
#include "profile/clock_messages.h"

namespace farandole::profiler {
namespace {

[[noreturn]] void throw_socket_error(const char* call) {
  throw SystemError("profile-clock", std::string(call) + "() failed for the clock of a profile.",
                    std::generic_category().message(errno) + ".",
                    "use fewer open files, or name this host's interface in "
                    "FARANDOLE_NETWORK_INTERFACE.");
}

uint64_t random_number() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

}  // namespace

comm::PrivateDescriptor clock_socket(int family) {
  const int descriptor = ::socket(family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (descriptor < 0) throw_socket_error("socket");
  return comm::PrivateDescriptor(descriptor);
}

ClockServer::ClockServer(comm::Store& store, const std::string& address, const TraceClock& clock)
    : clock_(clock),
      socket_(clock_socket(comm::tcp::NetworkAddress::parse(address).family())),
      session_(random_number()) {
  const auto wanted = comm::tcp::NetworkAddress::parse(address);
  if (::bind(socket_.get(), wanted.get(), wanted.size()) != 0) throw_socket_error("bind");
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  auto* const raw = reinterpret_cast<sockaddr*>(&bound);
  if (::getsockname(socket_.get(), raw, &size) != 0) throw_socket_error("getsockname");
  store.set(kClockKey,
            std::to_string(session_) + " " + comm::tcp::NetworkAddress(raw, size).text());
}

void ClockServer::answer() const {
  if (!socket_.is_intact()) return;  // the program has closed it
  ClockMessage message;
  sockaddr_storage from{};
  auto* const raw = reinterpret_cast<sockaddr*>(&from);
  while (true) {
    socklen_t size = sizeof(from);
    const ssize_t bytes =
        ::recvfrom(socket_.get(), &message, sizeof(message), MSG_TRUNC, raw, &size);
    if (bytes < 0) return;  // nobody asks any more
    message.received_ns = clock_.now();
    if (bytes != sizeof(message) || message.session != session_) continue;
    message.answered_ns = clock_.now();
    ::sendto(socket_.get(), &message, sizeof(message), 0, raw, size);  // who is gone asks again
  }
}

}  // namespace farandole::profiler
