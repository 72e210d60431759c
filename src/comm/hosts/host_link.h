// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/byte_stream.h"
#include "comm/fork_guard.h"
#include "comm/private_descriptor.h"
#include "comm/tcp/hello.h"
#include "comm/tcp/network_address.h"
#include "comm/tcp/wake_event.h"
#include "farandole/comm/store.h"
#include "farandole/comm/topology.h"
#include "farandole/error.h"
#include "farandole/export.h"

namespace farandole::comm::hosts {

/// How the ranks of a link find each other and how long they wait.
struct LinkOptions {
  std::string group;                    ///< for messages and for keys in the store
  std::string secret;                   ///< of the job; empty: it has none
  std::string network_interface;        ///< see address_of_this_host()
  std::chrono::milliseconds silence;    ///< a host that does not answer for so long is lost
  std::chrono::milliseconds timeout;    ///< for all connections to be made
  std::function<void()> while_waiting;  ///< called now and then; what it throws ends the wait
  /// Called once when the link has failed for another reason than this rank's own abort(), on the
  /// thread of the link or on the one that drives a lane. Must not block. May be empty.
  /// `origin`: whose abort or end it is.
  std::function<void(const std::string& reason, int lost_rank, int origin)> on_failure;
  /// Called with the connection of a rank that begins to send messages, on the thread of the link.
  /// Must not block. Empty: no rank may.
  std::function<void(int rank, PrivateDescriptor socket)> on_messages;
  /// Called with what a peer has told by note(), on the thread of the link. Must not block. May be
  /// empty.
  std::function<void(int peer, const std::string& text)> on_note;
  /// Opens the streams of the lanes; empty: they are TCP connections.
  std::shared_ptr<StreamSource> streams;
};

/// What joins this rank and its peers, ranks of other hosts: with each peer `lanes` streams that
/// carry the bytes of collectives, each a TCP connection or what LinkOptions::streams opens, and
/// one control connection, always of TCP: it alone tells of a host that vanished, whatever the
/// streams are.
///
/// Formation. Each rank listens on a free port of its network interface and puts the address into
/// the store. Of two peers the one with the higher rank connects. Both prove to each other that
/// they are ranks of the group (tcp::Identity); only then the connection is theirs. Whoever cannot
/// is disconnected, and a client that sends nothing holds up nobody. In a job without a secret
/// clients of this host that run as another user are disconnected at once. Later connections are
/// those for messages (MessageRelay), opened by whoever sends first.
///
/// Connections that have proved nothing yet are few in the whole process: a new one takes the place
/// of an old one, first of one that is silent.
///
/// Failures. A thread sleeps in poll() on the control connections. A control connection that closes
/// without a goodbye means that the peer's process has ended. Whoever needs bytes of it fails at
/// once, all others a moment later: what it has sent before still arrives, and ranks that need no
/// more finish their collective, as they do if a rank exits after its part. A host that vanishes
/// does not close anything: TCP itself notices its silence on the control connection (keepalive
/// and TCP_USER_TIMEOUT) within `silence`. In either case, and when a rank aborts, the link fails:
/// each rank tells its own peers, and whoever drives a lane is woken by failed_, an eventfd in its
/// poll set. So it does if the thread cannot go on, as when the program has closed descriptors of
/// the link, which the thread looks for at least once a second.
///
/// Memory order: failure_ is written once with mutex_ held, before failed_ becomes readable.
///
/// Threads: lane() and drive() one at a time for each lane number; abort() from any thread. Fork: a
/// child must not use the link; its destructor says nothing to peers there.
class FARANDOLE_API HostLink {
 public:
  using Clock = std::chrono::steady_clock;

  /// Collective over this rank and its `peers`; each of them names this rank as its peer too.
  /// Throws TimeoutError naming peers that did not connect, SystemError.
  HostLink(Store& store, Topology topology, std::vector<int> peers, int lanes, LinkOptions options);
  /// Says goodbye, without waiting for anyone.
  ~HostLink();
  HostLink(const HostLink&) = delete;
  HostLink& operator=(const HostLink&) = delete;

  const std::vector<int>& peers() const { return peers_; }
  /// Where this rank listens, for the messages of ranks of other hosts that are no peers.
  const std::string& address() const { return address_; }
  /// Whether a connection for messages is half made that `rank` says it has opened. If not, and
  /// on_messages was not called either, nothing that `rank` has sent is on the way. Any thread.
  bool is_message_connection_pending(int rank) const;
  /// Begins to connect to the address of `rank`, without waiting. Throws SystemError.
  PrivateDescriptor begin_connection(tcp::NetworkAddress address, int rank, int lane) const;
  /// The lane of connections for messages.
  static constexpr int kMessageLane = -2;
  /// Stream `lane` with `peer`.
  ByteStream& stream(int peer, int lane) { return *streams_.at({peer, lane}); }

  /// How long and for what to drive a lane.
  struct Wait {
    std::chrono::milliseconds timeout;  ///< for texts
    Clock::time_point deadline;
    std::function<bool()> is_done;         ///< asked after each progress; empty: all is moved
    std::function<std::string()> subject;  ///< begins the texts of errors
    std::string collective = {};           ///< of errors' Fault
    std::function<void()> look = {};       ///< called every 50 ms; what it throws ends the wait
  };
  /// Moves the bytes that are queued in `lane`'s streams. Throws PeerFailure if a peer was lost,
  /// AbortedError if a rank has aborted, TimeoutError with the peers whose bytes are missing.
  void drive(int lane, const Wait& wait);

  /// Tells all peers `text`, of at most 4096 bytes. A peer that reads nothing may not get it. Any
  /// thread.
  void note(const std::string& text);
  /// Whether `peer` has said goodbye. Any thread.
  bool has_left(int peer) const;
  /// Says goodbye while the link lives: this rank uses it no more. Any thread.
  void leave(const std::string& reason);
  /// Fails the link on this rank and tells the peers. Only the first reason counts.
  void abort(const std::string& reason, int lost_rank = -1);
  /// Throws what drive() would if the link has failed.
  void check_usable(const std::function<std::string()>& subject,
                    const std::string& collective = {}) const;

 private:
  /// Begins a message on a control connection; `bytes` of text follow.
  struct ControlHead {
    enum Kind : uint32_t { kGoodbye = 1, kAbort = 2, kNote = 3 };
    uint32_t kind;
    int32_t lost_rank;
    uint32_t bytes;
  };
  /// A connection that has not proved to be that of a rank yet.
  struct Stranger {
    PrivateDescriptor socket;
    Clock::time_point until;
    size_t bytes = 0;  ///< of what it sends now: of its hello, then of its proof
    tcp::Hello hello{};
    std::optional<tcp::Answer> answer{};  ///< to its hello
    Digest proof{};
  };
  /// The control connection with a peer.
  struct Control {
    int peer;
    PrivateDescriptor socket;
    std::string buffer;
    bool has_left = false;
    bool is_open = true;
    std::optional<Clock::time_point> ended = {};  ///< when it closed without a goodbye
    bool was_reset = false;                       ///< then: by a reset
  };
  /// Why the link is over.
  struct Failure {
    enum class Kind { kEnded, kSilent, kBroken, kLeft, kAborted, kOwn };
    Kind kind;
    int rank;                       ///< whose end, silence or abort it is
    std::string text;               ///< the cause, or the reason that the rank gave
    int lost_rank;                  ///< of kAborted: the rank that was lost; -1: another reason
    std::exception_ptr error = {};  ///< of kOwn: what this rank has met
  };

  static constexpr int kControlLane = -1;

  bool is_expected(const tcp::Hello& hello) const;
  void listen();
  void connect_all(Store& store);
  PrivateDescriptor connect_to(const tcp::NetworkAddress& address, int peer, int lane);
  void introduce(int socket, const tcp::NetworkAddress& address, int peer, int lane);
  tcp::Answer receive_answer(int socket, int peer);
  void await_all(Store& store);
  bool refuses_connections(Store& store, int peer) const;
  void take_over_connections();
  std::string key(int rank) const;
  [[noreturn]] void throw_missing(const std::vector<int>& missing) const;
  [[noreturn]] void throw_closed(int peer) const;
  [[noreturn]] void throw_ended(int peer) const;
  void tune(int socket, int lane) const;

  /// How many vain looks at the streams of a lane there were, and how long the next nap is.
  struct Vain {
    int looks = 0;
    std::chrono::microseconds nap{0};
  };
  void await_streams(int lane, Clock::time_point until, Vain& vain);

  void run();
  void watch();
  bool has_its_descriptors() const;
  CommError closed_descriptor() const;
  void fail_for(const std::string& text, std::exception_ptr error);
  void accept_some();
  bool is_refused(int socket);
  void hear_stranger(Stranger& stranger);
  bool receive_of(Stranger& stranger, void* message, size_t bytes);
  void admit(Stranger& stranger);
  void drop_strangers();
  void list_pending();
  void drop_one_stranger();
  void count_strangers();
  size_t most_strangers() const;
  void hear_control(Control& control);
  bool fail_for_ended();
  void read_messages(Control& control);
  void fail(Failure failure);
  void tell(ControlHead::Kind kind, const std::string& text, int lost_rank);
  [[noreturn]] void throw_failure(const std::string& subject, const std::string& collective) const;
  void check_stream(int peer, const ByteStream& stream);
  [[noreturn]] void throw_late(int lane, const Wait& wait);
  std::vector<int> unfinished(int lane);

  Topology topology_;
  std::vector<int> peers_;
  int lanes_;
  int tcp_lanes_;  ///< those that are TCP connections
  LinkOptions options_;
  tcp::Identity identity_;
  ForkGuard fork_guard_;
  Clock::time_point formation_deadline_;

  std::string address_;
  PrivateDescriptor listener_;
  tcp::WakeEvent wake_;    ///< eventfd: the thread is to end or to look at its connections
  tcp::WakeEvent failed_;  ///< eventfd: readable from the first failure on
  std::map<std::pair<int, int>, std::unique_ptr<ByteStream>> streams_;  ///< by peer and lane

  std::vector<Stranger> strangers_;  ///< of the thread; the oldest first
  size_t counted_strangers_ = 0;     ///< of the thread: its part in the number of the process
  bool has_refused_ = false;         ///< of the thread: another user, which was told
  bool watches_by_thread_ = false;   ///< of the thread: watches_, as it has seen it
  std::vector<Control> controls_;    ///< of the thread, once it watches

  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::pair<int, int>, PrivateDescriptor> connections_;  ///< guarded by mutex_; see above
  std::optional<Failure> failure_;                                ///< guarded by mutex_
  std::set<int> left_;         ///< guarded by mutex_; peers that said goodbye
  std::vector<int> pending_;   ///< guarded by mutex_; see is_message_connection_pending()
  std::map<int, bool> ended_;  ///< guarded by mutex_; peers that have closed without one: by reset?
  bool watches_ = false;       ///< guarded by mutex_; controls_ is complete
  bool ends_ = false;          ///< guarded by mutex_
  std::thread thread_;
};

}  // namespace farandole::comm::hosts
