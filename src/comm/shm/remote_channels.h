// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "comm/shm/channel.h"

namespace farandole::comm::shm {

/// Channels between this rank and ranks of other hosts, which PointToPoint uses as it uses those of
/// its host: it writes to to(peer) and takes from from(peer). Somebody else carries the bytes on to
/// the other host, and calls PointToPoint::wake() whenever bytes have moved.
///
/// `peer` counts from 0. Threads: any.
class RemoteChannels {
 public:
  virtual ~RemoteChannels() = default;
  virtual size_t capacity() const = 0;
  /// Makes to(peer), for the first send.
  virtual void open(int peer) = 0;
  virtual Channel* to(int peer) const = 0;    ///< null until it is opened
  virtual Channel* from(int peer) const = 0;  ///< null until the peer has opened it
  /// Bytes have been written to to(peer), or taken from from(peer).
  virtual void moved(int peer) = 0;
  /// Whether the peer sends and receives no more; what it has sent is in from(peer).
  virtual bool is_gone(int peer) const = 0;
};

}  // namespace farandole::comm::shm
