// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "comm/private_descriptor.h"
#include "farandole/comm/store.h"
#include "farandole/export.h"
#include "profile/trace_clock.h"

namespace farandole::profiler {

/// Where the ranks find out what rank 0's clock says; see clock_messages.h. Threads: one at a time.
class FARANDOLE_API ClockServer {
 public:
  /// `address`: of this host, "10.0.0.1:0"; ranks find it in `store`. Throws SystemError.
  ClockServer(comm::Store& store, const std::string& address, const TraceClock& clock);
  /// Readable when a rank asks.
  int descriptor() const { return socket_.get(); }
  /// Answers all that have asked. Does not throw.
  void answer() const;

 private:
  const TraceClock& clock_;
  const comm::PrivateDescriptor socket_;
  uint64_t session_;
};

}  // namespace farandole::profiler
