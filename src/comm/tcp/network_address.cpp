// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/network_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <sstream>
#include <tuple>
#include <vector>

#include "comm/shm/system/system_call.h"
#include "farandole/error.h"

namespace farandole::comm::tcp {
namespace {

/// An interface of this host that is up, and one of its addresses.
struct Interface {
  std::string name;
  NetworkAddress address;
  bool is_loopback;
};

std::vector<Interface> interfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    shm::throw_errno("getifaddrs", "check whether a sandbox forbids netlink sockets.");
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::vector<Interface> found;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    found.push_back({each->ifa_name, NetworkAddress(each->ifa_addr, size),
                     (each->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return found;
}

/// The bytes of an address without its port, 4 or 16.
std::string bytes_of(const NetworkAddress& address) {
  if (address.family() == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(*address.get());
    return {reinterpret_cast<const char*>(&in.sin_addr), sizeof(in.sin_addr)};
  }
  const auto& in = reinterpret_cast<const sockaddr_in6&>(*address.get());
  return {reinterpret_cast<const char*>(&in.sin6_addr), sizeof(in.sin6_addr)};
}

/// Whether `address` lies in `network`, "10.1.0.0/16".
bool is_within(const NetworkAddress& address, const std::string& network) {
  const size_t slash = network.find('/');
  if (slash == std::string::npos) return false;
  unsigned bits = 0;
  const char* end = network.data() + network.size();
  if (std::from_chars(network.data() + slash + 1, end, bits).ptr != end) return false;
  char wanted[sizeof(in6_addr)] = {};
  if (::inet_pton(address.family(), network.substr(0, slash).c_str(), wanted) != 1) return false;
  const std::string own = bytes_of(address);
  if (bits > own.size() * 8) return false;
  for (unsigned bit = 0; bit < bits; ++bit) {
    const int mask = 0x80 >> (bit % 8);
    if ((own[bit / 8] & mask) != (wanted[bit / 8] & mask)) return false;
  }
  return true;
}

/// Bridges that container engines and hypervisors make; other hosts do not reach their addresses.
bool is_virtual_bridge(const std::string& name) {
  for (const char* prefix : {"docker", "br-", "virbr", "cni", "lxc", "lxdbr", "podman"}) {
    if (name.rfind(prefix, 0) == 0) return true;
  }
  return false;
}

bool is_link_local(const Interface& interface) {
  return interface.address.family() == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(
             &reinterpret_cast<const sockaddr_in6&>(*interface.address.get()).sin6_addr);
}

}  // namespace

NetworkAddress::NetworkAddress(const sockaddr* address, socklen_t size) : size_(size) {
  std::memcpy(&storage_, address, std::min<size_t>(size, sizeof(storage_)));
}

NetworkAddress NetworkAddress::parse(const std::string& text) {
  const size_t colon = text.rfind(':');
  int port = -1;
  if (colon != std::string::npos) {
    std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
  }
  std::string host = text.substr(0, colon);
  NetworkAddress address;
  sockaddr_in four{};
  sockaddr_in6 six{};
  if (::inet_pton(AF_INET, host.c_str(), &four.sin_addr) == 1) {
    four.sin_family = AF_INET;
    address = NetworkAddress(reinterpret_cast<sockaddr*>(&four), sizeof(four));
  } else if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
    const size_t percent = host.find('%');
    if (percent != std::string::npos) {
      std::from_chars(host.data() + percent + 1, host.data() + host.size(), six.sin6_scope_id);
      host.resize(percent);
    }
    if (::inet_pton(AF_INET6, host.c_str(), &six.sin6_addr) == 1) {
      six.sin6_family = AF_INET6;
      address = NetworkAddress(reinterpret_cast<sockaddr*>(&six), sizeof(six));
    }
  }
  if (address.size() == 0 || port < 0 || port > 65535) {
    throw InvalidArgument("network-address", "'" + text + "' is not an address of a rank.",
                          "an address is as 10.0.0.1:29500 or [fe80::1]:29500.",
                          "use a separate store for each job.");
  }
  address.set_port(port);
  return address;
}

std::string NetworkAddress::host() const {
  char text[INET6_ADDRSTRLEN] = {};
  const std::string bytes = bytes_of(*this);
  ::inet_ntop(family(), bytes.data(), text, sizeof(text));
  return text;
}

std::string NetworkAddress::text() const {
  if (family() == AF_INET) return host() + ":" + std::to_string(port());
  const uint32_t scope = reinterpret_cast<const sockaddr_in6&>(storage_).sin6_scope_id;
  return "[" + host() + (scope != 0 ? "%" + std::to_string(scope) : "") +
         "]:" + std::to_string(port());
}

int NetworkAddress::port() const {
  return ntohs(family() == AF_INET ? reinterpret_cast<const sockaddr_in&>(storage_).sin_port
                                   : reinterpret_cast<const sockaddr_in6&>(storage_).sin6_port);
}

void NetworkAddress::set_port(int port) {
  const uint16_t number = htons(static_cast<uint16_t>(port));
  if (family() == AF_INET) {
    reinterpret_cast<sockaddr_in&>(storage_).sin_port = number;
  } else {
    reinterpret_cast<sockaddr_in6&>(storage_).sin6_port = number;
  }
}

void NetworkAddress::take_scope_of(const NetworkAddress& own) {
  if (family() != AF_INET6 || own.family() != AF_INET6) return;
  auto& six = reinterpret_cast<sockaddr_in6&>(storage_);
  if (!IN6_IS_ADDR_LINKLOCAL(&six.sin6_addr)) return;
  six.sin6_scope_id = reinterpret_cast<const sockaddr_in6&>(*own.get()).sin6_scope_id;
}

NetworkAddress address_of_this_host(const std::string& wanted) {
  std::vector<Interface> all = interfaces();
  // Addresses that most others can reach come first.
  std::stable_sort(all.begin(), all.end(), [](const Interface& a, const Interface& b) {
    const auto order = [](const Interface& each) {
      return std::tuple(each.is_loopback, is_virtual_bridge(each.name), is_link_local(each),
                        each.address.family() != AF_INET);
    };
    return order(a) < order(b);
  });
  std::istringstream names(wanted);
  std::string name;
  while (std::getline(names, name, ',')) {
    name.erase(std::remove_if(name.begin(), name.end(), ::isspace), name.end());
    for (const Interface& each : all) {
      if (each.name == name || is_within(each.address, name)) return each.address;
    }
  }
  if (wanted.empty() && !all.empty()) return all.front().address;
  std::string present;
  for (const Interface& each : all) {
    present += (present.empty() ? "" : ", ") + each.name + " (" + each.address.host() + ")";
  }
  throw InvalidArgument("network-interface", "this host has no network interface '" + wanted + "'.",
                        "its interfaces are: " + present + ".",
                        "set FARANDOLE_NETWORK_INTERFACE to some of their names, or to a network "
                        "such as 10.0.0.0/8, or unset it.");
}

}  // namespace farandole::comm::tcp
