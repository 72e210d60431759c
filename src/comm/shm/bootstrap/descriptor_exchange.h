// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/shm/bootstrap/bootstrap.h"
#include "comm/shm/bootstrap/unix_socket.h"
#include "comm/shm/system/await.h"
#include "comm/shm/system/descriptor.h"
#include "farandole/comm/topology.h"

namespace farandole::comm::shm {

/// Passes file descriptors among the ranks of one host: a star of Unix sockets around rank 0. A
/// connection counts only after the peer showed the group's random token and the same user id.
///
/// Descriptors on their way count against the limit of open files of their user (unix(7),
/// ETOOMANYREFS). Whoever meets the limit waits until peers have taken theirs.
///
/// Threads: one call at a time.
class DescriptorExchange {
 public:
  explicit DescriptorExchange(const Topology& topology);

  /// Connects all ranks. Collective; rank 0 listens, and the store says where. Throws what
  /// Bootstrap::await() throws, and SystemError.
  void connect(Bootstrap& bootstrap);

  // All below are collective. Besides what `await` throws they throw PeerFailure where a peer has
  // closed its socket, and SystemError.

  /// Everyone's descriptor, by rank; invalid where a rank had none to give.
  std::vector<Descriptor> all_gather(const Descriptor& own, const Await& await);
  /// Rank 0 makes a descriptor and all ranks get it. If `make` throws, every rank gets a
  /// SystemError with its reason.
  Descriptor broadcast(const std::function<Descriptor()>& make, const Await& await);
  /// Returns when every rank has called it.
  void meet(const Await& await);

 private:
  struct Message;

  void accept_peers(int listener, const std::string& token, Bootstrap& bootstrap);
  int socket_to(int peer) const;
  int identify(const Descriptor& caller, const std::string& token) const;
  void send(int peer, const Message& message, const std::vector<int>& fds, const Await& await);
  std::vector<Descriptor> receive(int peer, Message* message, const Await& await);

  Topology topology_;
  std::vector<Descriptor> sockets_;  ///< by peer rank; ranks but 0 have only [0]
};

}  // namespace farandole::comm::shm
