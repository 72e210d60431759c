// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "farandole/export.h"

namespace farandole::comm::tcp {

/// Whose process holds the other end of a connection.
enum class PeerUser {
  kSame,     ///< this process's user's
  kOther,    ///< another user's of this host
  kUnknown,  ///< the kernel does not tell: it is on another host, in another network namespace, or
             ///< held by nobody: closed, or not accepted yet
};

/// As /proc/net/tcp and tcp6 have it. Any thread.
FARANDOLE_API PeerUser user_of_peer(int socket);

}  // namespace farandole::comm::tcp
