// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/fork_guard.h"
#include "comm/hosts/host_link.h"
#include "comm/private_descriptor.h"
#include "comm/shm/channel.h"
#include "comm/shm/remote_channels.h"
#include "comm/tcp/hello.h"
#include "comm/tcp/network_address.h"
#include "comm/tcp/wake_event.h"
#include "farandole/export.h"

namespace farandole::comm::hosts {

/// Carries the messages of one rank to and from ranks of other hosts: one connection for each pair
/// and direction, opened with the first message.
///
/// A thread, which starts with the first connection, moves bytes between the sockets and the
/// channels that PointToPoint writes and reads. Between the two there are only the channels'
/// counters (channel.h) and wake-ups: PointToPoint calls moved(), which makes wake_ readable; the
/// thread calls on_moved, which rings the rank's doorbell.
///
/// Memory order: a channel is made before its pointer is stored with release order, and never
/// replaced. Sockets belong to the thread once it has taken them over from the lists of mutex_.
///
/// Threads: any for RemoteChannels and accept(). Fork: a child must not use it.
class FARANDOLE_API MessageRelay final : public shm::RemoteChannels {
 public:
  struct Options {
    std::vector<int> ranks;  ///< in the group, by peer
    tcp::Identity identity;  ///< of this rank
    int own_rank;            ///< in the group
    std::function<void()> on_moved;
    /// Nothing can be carried any more. Must not block.
    std::function<void(const std::string& reason, int lost_rank)> on_failure;
  };

  explicit MessageRelay(Options options);
  ~MessageRelay() override;

  /// By peer; before the first open(). `link` begins connections, until stop().
  void set_addresses(HostLink& link, std::vector<tcp::NetworkAddress> addresses);
  /// Takes a connection that `rank` has opened.
  void accept(int rank, PrivateDescriptor socket);
  /// Ends the thread. What is still in channels stays there.
  void stop();

  size_t capacity() const override;
  void open(int peer) override;
  shm::Channel* to(int peer) const override;
  shm::Channel* from(int peer) const override;
  void moved(int peer) override;
  bool is_gone(int peer) const override;

 private:
  struct FreeChannel {
    void operator()(shm::Channel* channel) const;
  };
  using OwnedChannel = std::unique_ptr<shm::Channel, FreeChannel>;

  /// One direction between this rank and a peer.
  struct Way {
    enum class State { kNone, kConnecting, kGreeting, kOpen, kEnded };
    std::atomic<shm::Channel*> channel{nullptr};
    OwnedChannel owned;
    // Of the thread:
    State state = State::kNone;
    PrivateDescriptor socket;
    tcp::Hello hello{};
    tcp::Answer answer{};  ///< to it
    size_t answered = 0;
  };
  struct Peer {
    int rank;
    tcp::NetworkAddress address;
    Way to;
    Way from;
    std::atomic<bool> is_gone{false};
  };

  static OwnedChannel make_channel();
  void start();
  void run();
  void take_over();
  void connect(Peer& peer);
  void advance_connection(Peer& peer);
  bool send_some(Peer& peer);
  bool receive_some(Peer& peer);
  void end(Way& way);
  bool find_gone_peers();
  void fail(Peer& peer, const std::string& what, int error);

  Options options_;
  ForkGuard fork_guard_;
  HostLink* link_ = nullptr;
  std::vector<std::unique_ptr<Peer>> peers_;
  tcp::WakeEvent wake_;

  std::mutex mutex_;
  std::vector<int> to_open_;                                 ///< guarded by mutex_
  std::vector<std::pair<int, PrivateDescriptor>> accepted_;  ///< guarded by mutex_
  bool ends_ = false;                                        ///< guarded by mutex_
  std::thread thread_;                                       ///< guarded by mutex_
};

}  // namespace farandole::comm::hosts
