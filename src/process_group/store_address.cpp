// SPDX-License-Identifier: Apache-2.0
#include "process_group/store_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "comm/shm/system/descriptor.h"
#include "farandole/comm/interrupt.h"
#include "farandole/error.h"
#include "log.h"

namespace farandole {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// The longest wait for a name to get an address.
constexpr milliseconds kResolving{30000};
/// After such a wait, or half of the timeout, the user learns what is waited for.
constexpr milliseconds kPatience{5000};
constexpr milliseconds kPause{200};
constexpr timeval kConnecting{2, 0};

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

/// None: then `error` says why.
Addresses addresses_of(const std::string& host, const std::string& port, std::string* error) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (code != 0) *error = ::gai_strerror(code);
  return {code == 0 ? found : nullptr, [](addrinfo* list) {
            if (list != nullptr) ::freeaddrinfo(list);
          }};
}

}  // namespace

StoreAddress::StoreAddress(std::string host, int port)
    : host_(std::move(host)), port_(std::to_string(port)), text_(host_ + ":" + port_) {}

void StoreAddress::resolve(milliseconds timeout) const {
  const auto begin = Clock::now();
  const milliseconds limit = std::min(timeout, kResolving);
  bool was_told = false;
  std::string error;
  while (!addresses_of(host_, port_, &error)) {
    const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
    if (waited >= limit) {
      throw SystemError(
          "store-address",
          "the ranks' store at " + text_ + " cannot be reached: '" + host_ + "' has no address.",
          "the lookup failed for " + std::to_string(limit.count()) + " ms: " + error + ".",
          "set MASTER_ADDR (or the host in tcp://host:port) to the name or address of rank 0's "
          "host, or to 127.0.0.1 if all ranks run on this host.");
    }
    if (!was_told && waited >= std::min(kPatience, limit / 2)) {
      log(LogLevel::kWarning, "the ranks' store at " + text_ + " cannot be reached yet: '" + host_ +
                                  "' has no address (" + error + "). The lookup is repeated.");
      was_told = true;
    }
    comm::check_forming_not_interrupted("default");
    std::this_thread::sleep_for(std::min(kPause, limit - waited));
  }
}

bool StoreAddress::wait_for_listener(milliseconds timeout) const {
  const auto begin = Clock::now();
  bool was_told = false;
  while (!is_listening()) {
    const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
    if (waited >= timeout) return false;
    if (!was_told && waited >= std::min(kPatience, timeout / 2)) {
      log(LogLevel::kInfo, "waiting for rank 0 at " + text_ + ", where it opens the ranks' store.");
      was_told = true;
    }
    comm::check_forming_not_interrupted("default");
    std::this_thread::sleep_for(std::min(kPause, timeout - waited));
  }
  return true;
}

bool StoreAddress::is_listening() const {
  std::string error;
  const Addresses found = addresses_of(host_, port_, &error);
  for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
    const comm::shm::Descriptor socket(
        ::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, each->ai_protocol));
    if (!socket.valid()) continue;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &kConnecting, sizeof(kConnecting));
    if (::connect(socket.get(), each->ai_addr, each->ai_addrlen) == 0) return true;
  }
  return false;
}

}  // namespace farandole
