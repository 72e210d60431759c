// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <string>

#include "farandole/export.h"

namespace farandole::comm::tcp {

/// An IPv4 or IPv6 address with a port.
class FARANDOLE_API NetworkAddress {
 public:
  NetworkAddress() = default;
  NetworkAddress(const sockaddr* address, socklen_t size);
  /// Reads what text() has written. Throws InvalidArgument.
  static NetworkAddress parse(const std::string& text);

  /// "10.0.0.1:29500", "[fe80::1%2]:29500"
  std::string text() const;
  /// Without the port: "10.0.0.1"
  std::string host() const;
  int port() const;
  void set_port(int port);
  /// Link-local addresses of IPv6 hold the number that their own host gives to its interface:
  /// replaces it by that of `own`, an address of this host.
  void take_scope_of(const NetworkAddress& own);
  int family() const { return storage_.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const { return size_; }

 private:
  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

/// The address on which this host is reached by others, with port 0. `wanted` is a list of
/// interface names and of networks in CIDR notation, separated by commas ("eth0,10.1.0.0/16"); the
/// first one that this host has is taken. Empty: the first interface that is up, loopback and
/// virtual bridges of containers last, IPv4 before IPv6. Throws InvalidArgument with this host's
/// interfaces if it has none of `wanted`.
FARANDOLE_API NetworkAddress address_of_this_host(const std::string& wanted);

}  // namespace farandole::comm::tcp
