// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

namespace farandole {

/// Where rank 0 serves the store in which all ranks meet. TCPStore tries for its whole timeout to
/// reach a host that does not exist, and tells the user nothing, so both are checked before.
class StoreAddress {
 public:
  StoreAddress(std::string host, int port);

  /// "host:29500"
  const std::string& text() const { return text_; }
  /// Waits until the host's name has an address, as it may have only when that host has started.
  /// Throws SystemError.
  void resolve(std::chrono::milliseconds timeout) const;
  /// Waits until rank 0 listens there, and logs that if it takes long. False: it does not in time.
  bool wait_for_listener(std::chrono::milliseconds timeout) const;

 private:
  bool is_listening() const;

  std::string host_;
  std::string port_;
  std::string text_;
};

}  // namespace farandole
