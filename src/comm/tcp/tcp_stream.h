// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "comm/byte_stream.h"
#include "comm/private_descriptor.h"
#include "farandole/export.h"

namespace farandole::comm::tcp {

/// Whether a connection has ended with `error` because the other host does not answer.
bool is_silence(int error);

/// How a connect() that did not wait has ended, when poll() tells that it has: 0, or errno.
int error_of_connect(int socket);

/// A stream over one TCP connection. What was sent is the kernel's to deliver.
class FARANDOLE_API TcpStream final : public ByteStream {
 public:
  explicit TcpStream(PrivateDescriptor socket) : socket_(std::move(socket)) {}

  bool progress() override;
  int descriptor() const override { return socket_.get(); }
  bool is_intact() const override { return socket_.is_intact(); }

 private:
  bool send_some();
  bool receive_some();

  PrivateDescriptor socket_;
};

}  // namespace farandole::comm::tcp
