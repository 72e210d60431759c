// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "comm/shm/descriptor.h"
#include "farandole/comm/store.h"
#include "farandole/comm/topology.h"

namespace farandole::comm::shm {

/// Ranks that one exchange can hold: the descriptors that the kernel passes in one message.
constexpr int kMaxRanks = 250;

/// Passes file descriptors among the ranks of one host: a star of Unix sockets around rank 0. A
/// connection counts only after the peer showed the group's random token and the same user id.
///
/// Threads: one call at a time.
class DescriptorExchange {
 public:
  /// Connects all ranks of `topology`. Collective. `store` tells where rank 0 listens.
  /// Throws TimeoutError naming ranks that did not connect, SystemError.
  DescriptorExchange(Store& store, const std::string& group, const Topology& topology,
                     std::chrono::milliseconds timeout);

  /// Everyone's descriptor, by rank; invalid where a rank had none to give. Collective.
  std::vector<Descriptor> all_gather(const Descriptor& own, std::chrono::milliseconds timeout);
  /// Rank 0 makes a descriptor and all ranks get it. Collective. If `make` throws, every rank gets
  /// a SystemError with that text. `peer_gone` tells a waiting rank that rank 0 will not answer.
  Descriptor broadcast(const std::function<Descriptor()>& make, std::chrono::milliseconds timeout,
                       const std::function<bool()>& peer_gone);

 private:
  void listen_and_accept(Store& store, std::chrono::milliseconds timeout);
  void connect_to_hub(Store& store, std::chrono::milliseconds timeout);
  std::string key() const;

  std::string group_;
  Topology topology_;
  std::vector<Descriptor> sockets_;  ///< rank 0: by peer rank; others: only [0]
};

}  // namespace farandole::comm::shm
