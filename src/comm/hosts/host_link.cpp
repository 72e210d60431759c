// SPDX-License-Identifier: Apache-2.0
#include "comm/hosts/host_link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "comm/closed_descriptor.h"
#include "comm/lost_rank.h"
#include "comm/shm/system/reason.h"
#include "comm/shm/system/system_call.h"
#include "comm/start_thread.h"
#include "comm/tcp/tcp_stream.h"
#include "farandole/comm/interrupt.h"
#include "farandole/error.h"
#include "log.h"

namespace farandole::comm::hosts {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

/// Connections of this process that have proved nothing yet: so many, and at most this part of the
/// descriptors that it may have.
constexpr size_t kMostStrangers = 256;
constexpr size_t kPartOfDescriptors = 8;
/// So many are accepted before they are heard.
constexpr int kAcceptedAtOnce = 32;
/// How long a stranger may take to prove that it is a rank.
constexpr milliseconds kStrangerTime{10000};
constexpr milliseconds kStrangerSlice{200};
/// How often the thread looks whether its descriptors are still its own.
constexpr milliseconds kOwnLook{1000};
/// Of all links of this process.
std::atomic<size_t> all_strangers{0};
/// How long the end of a peer is not told to ranks that do not need it.
constexpr milliseconds kAfterEnd{200};
/// A reason longer than this is cut off; a peer that announces more is not one of ours.
constexpr size_t kMostText = 4096;
/// How often a rank looks whether a peer that has not connected still listens, and how many
/// refusals in a row show that it has ended.
constexpr milliseconds kLookAtListener{1000};
constexpr int kMostRefusals = 4;
/// How often a wait calls while_waiting.
constexpr milliseconds kSlice{100};

/// How often a rank that drives a lane looks at what else may have happened.
constexpr milliseconds kLook{50};
/// Of streams that cannot tell when they have something to do: looks without a nap between them,
/// and the naps after that.
constexpr int kLooksAtOnce = 16;
constexpr microseconds kFirstNap{20};
constexpr microseconds kLongestNap{200};
/// How long the reason of a closed lane is waited for, and how often it is looked for.
constexpr milliseconds kVerdictTime{1000};
constexpr milliseconds kVerdictSlice{5};

std::string text_of_errno(int number) {
  return std::string(std::strerror(number)) + " (errno " + std::to_string(number) + ").";
}

constexpr const char* kWhyEnded =
    "the connection was closed without a goodbye: that process has ended, or its program has "
    "closed file descriptors that it has not opened.";
constexpr const char* kWhyReset =
    "the connection was reset: that process has ended, or something between the hosts, as a "
    "firewall, has cut the connection.";

template <class Value>
void set_option(int socket, int level, int name, Value value) {
  ::setsockopt(socket, level, name, &value, sizeof(value));  // none of them is needed to work
}

int poll_for(std::vector<pollfd>& set, HostLink::Clock::time_point until) {
  const auto left = std::chrono::ceil<milliseconds>(until - HostLink::Clock::now());
  const int wait = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1'000'000));
  const int ready = ::poll(set.data(), set.size(), wait);
  if (ready < 0 && errno != EINTR) shm::throw_errno("poll", "raise the limit of open files.");
  return ready;
}

/// The whole of a small message, on a socket whose buffer has room for it; false: it has not.
bool send_at_once(int socket, const void* data, size_t bytes) {
  const ssize_t sent =
      shm::retried([&] { return ::send(socket, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL); });
  return sent == static_cast<ssize_t>(bytes);
}

}  // namespace

HostLink::HostLink(Store& store, Topology topology, std::vector<int> peers, int lanes,
                   LinkOptions options)
    : topology_(std::move(topology)),
      peers_(std::move(peers)),
      lanes_(lanes),
      tcp_lanes_(options.streams ? 0 : lanes),
      options_(std::move(options)),
      identity_(options_.secret, topology_.session, topology_.rank),
      formation_deadline_(Clock::now() + options_.timeout) {
  listen();
  thread_ = start_thread("farandole link", "connections between hosts", [this] { run(); });
  try {
    connect_all(store);
    await_all(store);
    take_over_connections();
    if (options_.streams) {
      options_.streams->before_end([this] { leave("MPI was finalized in that process."); });
    }
  } catch (...) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ends_ = true;
    }
    wake_.signal();
    thread_.join();
    throw;
  }
}

HostLink::~HostLink() {
  if (!fork_guard_.in_creator()) {
    keep_thread_of_parent(thread_);
    return;
  }
  bool has_failed = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
    has_failed = failure_.has_value();
  }
  wake_.signal();
  thread_.join();
  if (options_.streams) options_.streams->before_end(nullptr);
  for (const auto& [key, stream] : streams_) {
    if (has_failed) stream->give_up();
  }
  if (!has_failed) tell(ControlHead::kGoodbye, "", -1);
}

// ---- Formation

std::string HostLink::key(int rank) const {
  return options_.group + "/" + topology_.session + "/tcp/" + std::to_string(rank);
}

/// What makes TCP itself notice a host that vanished: probes of an idle connection. On control
/// connections also a bound on how long sent bytes may stay unacknowledged; on others that would
/// count the time in which a busy peer reads nothing.
void HostLink::tune(int socket, int lane) const {
  const auto silence = static_cast<int>(options_.silence.count());
  constexpr int kProbes = 3;
  const int seconds = std::max(1, silence / 1000 / (kProbes + 1));
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, seconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  if (lane == kControlLane) {
    set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<unsigned>(silence));
  }
}

void HostLink::listen() {
  const tcp::NetworkAddress own = tcp::address_of_this_host(options_.network_interface);
  listener_ = PrivateDescriptor(
      ::socket(own.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  constexpr const char* kFix = "check that FARANDOLE_NETWORK_INTERFACE names a working interface.";
  if (!listener_.valid()) shm::throw_errno("socket", kFix);
  if (::bind(listener_.get(), own.get(), own.size()) != 0) {
    shm::throw_errno("bind to " + own.host(), kFix);
  }
  if (::listen(listener_.get(), SOMAXCONN) != 0) shm::throw_errno("listen", kFix);
}

void HostLink::connect_all(Store& store) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    shm::throw_errno("getsockname", "report it.");
  }
  address_ = tcp::NetworkAddress(reinterpret_cast<sockaddr*>(&bound), size).text();
  store.set(key(topology_.rank), address_);
  for (const int peer : peers_) {
    if (peer > topology_.rank) continue;
    std::optional<std::string> address;
    while (!address) {
      if (Clock::now() >= formation_deadline_) throw_missing({peer});
      if (options_.while_waiting) options_.while_waiting();
      address = store.get(key(peer), kSlice);
    }
    const tcp::NetworkAddress target = tcp::NetworkAddress::parse(*address);
    for (int lane = kControlLane; lane < tcp_lanes_; ++lane) {
      PrivateDescriptor made = connect_to(target, peer, lane);
      const std::lock_guard<std::mutex> lock(mutex_);
      connections_[{peer, lane}] = std::move(made);
    }
  }
}

namespace {

constexpr const char* kFixOfConnect =
    "check that hosts reach each other there (firewalls, routes), or choose another interface "
    "with FARANDOLE_NETWORK_INTERFACE.";

}  // namespace

PrivateDescriptor HostLink::begin_connection(tcp::NetworkAddress address, int rank,
                                             int lane) const {
  address.take_scope_of(tcp::NetworkAddress::parse(address_));
  PrivateDescriptor made(
      ::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!made.valid()) shm::throw_errno("socket", "use fewer ranks, or raise ulimit -n.");
  tune(made.get(), lane);
  if (::connect(made.get(), address.get(), address.size()) != 0 && errno != EINPROGRESS) {
    shm::throw_errno("connecting to " + topology_.describe(rank) + " at " + address.text(),
                     kFixOfConnect);
  }
  return made;
}

/// A connection to `peer` on which both ends have proved that they are ranks.
PrivateDescriptor HostLink::connect_to(const tcp::NetworkAddress& address, int peer, int lane) {
  PrivateDescriptor made = begin_connection(address, peer, lane);
  const std::string subject = "connecting to " + topology_.describe(peer) + " at " + address.text();
  std::vector<pollfd> set{{made.get(), POLLOUT, 0}};
  while (poll_for(set, std::min(formation_deadline_, Clock::now() + kSlice)) <= 0) {
    if (Clock::now() >= formation_deadline_) throw_missing({peer});
    if (options_.while_waiting) options_.while_waiting();
  }
  const int error = tcp::error_of_connect(made.get());
  if (error != 0) shm::throw_errno(subject, kFixOfConnect, error);
  introduce(made.get(), address, peer, lane);
  return made;
}

/// The peer's thread answers at once, whatever that rank does.
void HostLink::introduce(int socket, const tcp::NetworkAddress& address, int peer, int lane) {
  const tcp::Hello hello = identity_.hello(lane);
  if (!send_at_once(socket, &hello, sizeof(hello))) throw_closed(peer);
  const tcp::Answer answer = receive_answer(socket, peer);
  if (!identity_.is_right(answer, hello, peer)) {
    throw MismatchError(
        "link-stranger",
        "group '" + options_.group + "' did not form: the process that listens at " +
            address.text() + " did not prove to be " + topology_.describe(peer) + ".",
        "it has a different job secret or none, belongs to another group, or runs another version "
        "of Farandole.",
        "start all ranks with one launcher, or set FARANDOLE_JOB_SECRET to the same value for all "
        "ranks.",
        topology_.fault_of({peer}));
  }
  if (!identity_.allows_user_of(socket)) {
    throw MismatchError(
        "link-other-user",
        "group '" + options_.group + "' did not form: a process of another user listens at " +
            address.text() + " instead of " + topology_.describe(peer) + ".",
        "the job has no secret, so ranks on one host connect only to processes of their own user.",
        "set FARANDOLE_JOB_SECRET to the same value for all ranks, or run them as one user.",
        topology_.fault_of({peer}));
  }
  const Digest proof = identity_.proof(hello, answer);
  if (!send_at_once(socket, &proof, sizeof(proof))) throw_closed(peer);
}

tcp::Answer HostLink::receive_answer(int socket, int peer) {
  tcp::Answer answer{};
  size_t bytes = 0;
  std::vector<pollfd> set{{socket, POLLIN, 0}};
  while (bytes < sizeof(answer)) {
    if (poll_for(set, std::min(formation_deadline_, Clock::now() + kSlice)) <= 0) {
      if (Clock::now() >= formation_deadline_) throw_missing({peer});
      if (options_.while_waiting) options_.while_waiting();
      continue;
    }
    const ssize_t got = shm::retried([&] {
      return ::recv(socket, reinterpret_cast<char*>(&answer) + bytes, sizeof(answer) - bytes,
                    MSG_DONTWAIT);
    });
    if (got <= 0 && !(got < 0 && errno == EAGAIN)) throw_closed(peer);
    if (got > 0) bytes += static_cast<size_t>(got);
  }
  return answer;
}

/// Until peers of higher ranks have connected. A peer that dies before it does so closes nothing
/// that this rank has, so this rank looks whether the peer still listens.
void HostLink::await_all(Store& store) {
  int refusals = 0;
  auto next_look = Clock::now() + kLookAtListener;
  for (const int peer : peers_) {
    if (peer < topology_.rank) continue;  // connect_all() has seen to it
    for (int lane = kControlLane; lane < tcp_lanes_; ++lane) {
      std::unique_lock<std::mutex> lock(mutex_);
      while (connections_.count({peer, lane}) == 0) {
        if (Clock::now() >= formation_deadline_) throw_missing({peer});
        arrived_.wait_for(lock, kSlice);
        lock.unlock();
        if (options_.while_waiting) options_.while_waiting();
        if (Clock::now() >= next_look) {
          refusals = refuses_connections(store, peer) ? refusals + 1 : 0;
          if (refusals == kMostRefusals) throw_ended(peer);
          next_look = Clock::now() + kLookAtListener;
        }
        lock.lock();
      }
    }
  }
}

/// Whether nobody listens any more where `peer` has said that it does.
bool HostLink::refuses_connections(Store& store, int peer) const {
  const std::optional<std::string> told = store.try_get(key(peer));
  if (!told) return false;
  tcp::NetworkAddress address = tcp::NetworkAddress::parse(*told);
  address.take_scope_of(tcp::NetworkAddress::parse(address_));
  const PrivateDescriptor made(
      ::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!made.valid() || ::connect(made.get(), address.get(), address.size()) == 0) return false;
  if (errno != EINPROGRESS) return errno == ECONNREFUSED;
  std::vector<pollfd> set{{made.get(), POLLOUT, 0}};
  if (poll_for(set, Clock::now() + kSlice) <= 0) return false;
  return tcp::error_of_connect(made.get()) == ECONNREFUSED;
}

void HostLink::throw_ended(int peer) const {
  throw PeerFailure(
      "peer-ended-while-forming",
      "group '" + options_.group + "' did not form: " + topology_.describe(peer) + " ended.",
      "it ended before it had connected to rank " + std::to_string(topology_.rank) +
          ": its address refuses connections.",
      "look at that rank's own output; if it still runs, a firewall refuses connections to it, or "
      "FARANDOLE_NETWORK_INTERFACE names a wrong interface there.",
      topology_.fault_of({peer}));
}

/// `peer` has closed its connection while the link forms. What it told, or how it ended, says more,
/// perhaps in a moment.
void HostLink::throw_closed(int peer) const {
  const auto until = Clock::now() + kVerdictTime;
  while (options_.while_waiting && Clock::now() < until) {
    options_.while_waiting();
    std::this_thread::sleep_for(kVerdictSlice);
  }
  throw PeerFailure(
      "link-closed", topology_.describe(peer) + " disconnected while the link to it was set up.",
      "its socket closed.", "look at that rank's own output.", topology_.fault_of({peer}));
}

void HostLink::throw_missing(const std::vector<int>& missing) const {
  std::string names;
  for (const int rank : missing) {
    names += (names.empty() ? "" : ", ") + topology_.describe(rank);
  }
  throw TimeoutError(
      "link-not-formed",
      "group '" + options_.group + "' did not form within its timeout of " +
          std::to_string(options_.timeout.count()) + " ms: " + names + " did not connect.",
      "no connection between rank " + std::to_string(topology_.rank) + " and that rank was made.",
      "look at that rank's own output, and check that hosts reach each other (firewalls, routes); "
      "FARANDOLE_NETWORK_INTERFACE chooses the interface.",
      topology_.fault_of(missing));
}

void HostLink::take_over_connections() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const int peer : peers_) {
    controls_.push_back({peer, std::move(connections_.at({peer, kControlLane})), {}});
    for (int lane = 0; lane < lanes_; ++lane) {
      auto& stream = streams_[{peer, lane}];
      if (options_.streams) {
        stream = options_.streams->open(peer, lane);
      } else {
        stream = std::make_unique<tcp::TcpStream>(std::move(connections_.at({peer, lane})));
      }
    }
  }
  connections_.clear();
  watches_ = true;
  wake_.signal();
}

// ---- The thread

void HostLink::run() {
  try {
    watch();
  } catch (const std::exception& error) {  // no memory, or descriptors that are gone
    fail_for(error.what(), std::current_exception());
  }
  strangers_.clear();
  count_strangers();
}

void HostLink::watch() {
  std::vector<pollfd> set;
  while (true) {
    set = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    const size_t first_stranger = set.size();
    for (const Stranger& each : strangers_) set.push_back({each.socket.get(), POLLIN, 0});
    const size_t first_control = set.size();
    if (watches_by_thread_) {
      for (const Control& each : controls_) {
        set.push_back({each.is_open ? each.socket.get() : -1, POLLIN, 0});
      }
    }
    const bool looks_soon = fail_for_ended() || !strangers_.empty();
    poll_for(set, Clock::now() + (looks_soon ? kStrangerSlice : kOwnLook));
    if (set[0].revents != 0) wake_.clear();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (ends_) return;
      watches_by_thread_ = watches_;
    }
    if (!has_its_descriptors()) throw closed_descriptor();
    for (size_t i = first_control; i < set.size(); ++i) {
      if (set[i].revents != 0) hear_control(controls_[i - first_control]);
    }
    for (size_t i = first_stranger; i < first_control; ++i) {
      if (set[i].revents != 0) hear_stranger(strangers_[i - first_stranger]);
    }
    drop_strangers();
    if (set[1].revents != 0) accept_some();
    count_strangers();
  }
}

/// If not, the program has closed some, and their numbers may be those of its own files. Of the
/// thread.
bool HostLink::has_its_descriptors() const {
  if (!wake_.is_intact() || !failed_.is_intact() || !listener_.is_intact()) return false;
  if (!watches_by_thread_) return true;
  return std::all_of(
             controls_.begin(), controls_.end(),
             [](const Control& each) { return !each.is_open || each.socket.is_intact(); }) &&
         std::all_of(streams_.begin(), streams_.end(),
                     [](const auto& each) { return each.second->is_intact(); });
}

CommError HostLink::closed_descriptor() const {
  return closed_descriptor_error("group '" + options_.group + "' on " +
                                 topology_.name_of(topology_.rank));
}

/// This rank has met `error`, and the link cannot go on here. `text` is that of the error.
void HostLink::fail_for(const std::string& text, std::exception_ptr error) {
  fail({Failure::Kind::kOwn, topology_.rank, shm::reason_of(text), -1, std::move(error)});
}

void HostLink::accept_some() {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    PrivateDescriptor made(
        ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!made.valid()) {
      if (errno == EAGAIN) return;
      // Without a descriptor left the connection stays in the queue, and poll() would not sleep.
      drop_one_stranger();
      std::this_thread::sleep_for(kVerdictSlice);
      return;
    }
    count_strangers();
    if (all_strangers >= most_strangers()) drop_one_stranger();
    strangers_.push_back({std::move(made), Clock::now() + kStrangerTime});
  }
}

bool HostLink::is_refused(int socket) {
  if (identity_.allows_user_of(socket)) return false;
  if (!has_refused_) {
    log(LogLevel::kWarning,
        "another user of this host connected to rank " + std::to_string(topology_.rank) +
            " of group '" + options_.group +
            "' and was disconnected. Ranks that run as different users need a job secret: set "
            "FARANDOLE_JOB_SECRET to the same value for all ranks.");
  }
  has_refused_ = true;
  return true;
}

/// In all links of this process. While the group forms all ranks may connect at the same time.
size_t HostLink::most_strangers() const {
  rlimit limit{};
  size_t most = kMostStrangers;
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    most = std::min<size_t>(most, limit.rlim_cur / kPartOfDescriptors);
  }
  const size_t lanes = watches_by_thread_ ? 1 : static_cast<size_t>(tcp_lanes_ - kControlLane);
  return std::max(most, peers_.size() * lanes);
}

/// The oldest one of those that have said nothing, else the oldest.
void HostLink::drop_one_stranger() {
  if (strangers_.empty()) return;
  const auto silent = std::find_if(strangers_.begin(), strangers_.end(), [](const Stranger& each) {
    return each.bytes == 0 && !each.answer;
  });
  strangers_.erase(silent != strangers_.end() ? silent : strangers_.begin());
}

void HostLink::count_strangers() {
  all_strangers += strangers_.size() - counted_strangers_;  // modulo 2^64
  counted_strangers_ = strangers_.size();
}

/// Reads on of a stranger's message; whether it is complete. Disconnects one that has hung up.
bool HostLink::receive_of(Stranger& stranger, void* message, size_t bytes) {
  const ssize_t got = shm::retried([&] {
    return ::recv(stranger.socket.get(), static_cast<char*>(message) + stranger.bytes,
                  bytes - stranger.bytes, MSG_DONTWAIT);
  });
  if (got < 0 && errno == EAGAIN) return false;
  if (got <= 0) {
    stranger.socket.reset();
    return false;
  }
  stranger.bytes += static_cast<size_t>(got);
  if (stranger.bytes < bytes) return false;
  stranger.bytes = 0;
  return true;
}

/// Answers the hello of a stranger; one that proves to be a rank becomes a connection, others are
/// disconnected.
void HostLink::hear_stranger(Stranger& stranger) {
  if (!stranger.answer) {
    if (!receive_of(stranger, &stranger.hello, sizeof(stranger.hello))) return;
    // Only now, because to look a user up takes milliseconds where the host has many connections.
    if (is_expected(stranger.hello) && !is_refused(stranger.socket.get())) {
      stranger.answer = identity_.answer(stranger.hello);
      const tcp::Answer& answer = *stranger.answer;
      list_pending();  // before the rank can have sent a message
      if (send_at_once(stranger.socket.get(), &answer, sizeof(answer))) return;
    }
  } else {
    if (!receive_of(stranger, &stranger.proof, sizeof(stranger.proof))) return;
    if (identity_.is_proof(stranger.proof, stranger.hello, *stranger.answer) &&
        is_expected(stranger.hello)) {
      return admit(stranger);
    }
  }
  log(LogLevel::kDebug, "a process that did not prove to be a rank connected to rank " +
                            std::to_string(topology_.rank) + " of group '" + options_.group +
                            "' and was disconnected.");
  stranger.socket.reset();
}

void HostLink::admit(Stranger& stranger) {
  const int rank = stranger.hello.rank;
  const int lane = stranger.hello.lane;
  tune(stranger.socket.get(), lane);
  if (lane == kMessageLane) {
    options_.on_messages(rank, std::move(stranger.socket));
  } else {
    const std::lock_guard<std::mutex> lock(mutex_);
    connections_.try_emplace({rank, lane}, std::move(stranger.socket));
    arrived_.notify_all();
  }
  stranger.socket.reset();
}

/// Whether a rank of this group may open this connection now.
bool HostLink::is_expected(const tcp::Hello& hello) const {
  if (!tcp::is_hello(hello)) return false;
  if (hello.lane == kMessageLane) {
    return options_.on_messages && hello.rank >= 0 && hello.rank < topology_.world_size;
  }
  if (watches_by_thread_) return false;  // all have come
  return hello.rank > topology_.rank && hello.lane >= kControlLane && hello.lane < tcp_lanes_ &&
         std::find(peers_.begin(), peers_.end(), hello.rank) != peers_.end();
}

void HostLink::drop_strangers() {
  const auto now = Clock::now();
  strangers_.erase(std::remove_if(strangers_.begin(), strangers_.end(),
                                  [&](const Stranger& each) {
                                    return !each.socket.valid() || each.until < now;
                                  }),
                   strangers_.end());
  list_pending();
}

/// Call when a stranger gets an answer, and when strangers have been admitted or dropped.
void HostLink::list_pending() {
  std::vector<int> pending;
  for (const Stranger& each : strangers_) {
    if (each.answer && each.hello.lane == kMessageLane) pending.push_back(each.hello.rank);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  pending_.swap(pending);
}

bool HostLink::is_message_connection_pending(int rank) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::find(pending_.begin(), pending_.end(), rank) != pending_.end();
}

bool HostLink::has_left(int peer) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return left_.count(peer) != 0;
}

/// Reads what a peer says, and notices its end.
void HostLink::hear_control(Control& control) {
  char bytes[4096];
  const ssize_t got = shm::retried(
      [&] { return ::recv(control.socket.get(), bytes, sizeof(bytes), MSG_DONTWAIT); });
  if (got > 0) {
    control.buffer.append(bytes, static_cast<size_t>(got));
    read_messages(control);
    return;
  }
  if (got < 0 && errno == EAGAIN) return;
  const int error = got < 0 ? errno : 0;
  control.is_open = false;
  if (control.has_left) return;
  if (error == 0 || error == ECONNRESET) {
    control.ended = Clock::now();
    control.was_reset = error != 0;
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_[control.peer] = control.was_reset;
  } else {
    const auto kind = tcp::is_silence(error) ? Failure::Kind::kSilent : Failure::Kind::kBroken;
    fail({kind, control.peer, text_of_errno(error), -1});
  }
}

/// Fails the link for peers that have ended some time ago; whether one has ended since.
bool HostLink::fail_for_ended() {
  if (!watches_by_thread_) return false;
  bool has_new = false;
  for (Control& control : controls_) {
    if (!control.ended) continue;
    if (Clock::now() < *control.ended + kAfterEnd) {
      has_new = true;
      continue;
    }
    control.ended.reset();
    if (control.was_reset) {
      fail({Failure::Kind::kBroken, control.peer, kWhyReset, -1});
    } else {
      fail({Failure::Kind::kEnded, control.peer, kWhyEnded, -1});
    }
  }
  return has_new;
}

void HostLink::read_messages(Control& control) {
  ControlHead head{};
  while (control.buffer.size() >= sizeof(head)) {
    std::memcpy(&head, control.buffer.data(), sizeof(head));
    if (head.bytes > kMostText) {
      fail({Failure::Kind::kEnded, control.peer, "it sent what no rank sends.", -1});
      control.is_open = false;
      return;
    }
    if (control.buffer.size() < sizeof(head) + head.bytes) return;
    const std::string text = control.buffer.substr(sizeof(head), head.bytes);
    control.buffer.erase(0, sizeof(head) + head.bytes);
    if (head.kind == ControlHead::kGoodbye) {
      control.has_left = true;
      const std::lock_guard<std::mutex> lock(mutex_);
      left_.insert(control.peer);
    }
    if (head.kind == ControlHead::kAbort) {
      fail({Failure::Kind::kAborted, control.peer, text, head.lost_rank});
    }
    if (head.kind == ControlHead::kNote && options_.on_note) options_.on_note(control.peer, text);
  }
}

/// Keeps the first failure, wakes whoever drives a lane, and passes it on.
void HostLink::fail(Failure failure) {
  std::string text;
  int lost_rank = failure.lost_rank;
  if (failure.kind == Failure::Kind::kAborted || failure.kind == Failure::Kind::kOwn) {
    text = failure.text;
  } else {
    lost_rank = failure.rank;
    text = topology_.describe(failure.rank) + ": " + failure.text;
  }
  const int origin = failure.rank;
  const bool is_end =
      failure.kind == Failure::Kind::kEnded || failure.kind == Failure::Kind::kSilent;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_) return;
    failure_ = std::move(failure);
  }
  failed_.signal();
  if (options_.streams && is_end) options_.streams->note_lost();
  tell(ControlHead::kAbort, text, lost_rank);
  if (options_.on_failure) options_.on_failure(text, lost_rank, origin);
}

void HostLink::abort(const std::string& reason, int lost_rank) {
  if (!fork_guard_.in_creator()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_) return;
    failure_ = Failure{Failure::Kind::kAborted, topology_.rank, reason, lost_rank};
  }
  failed_.signal();
  tell(ControlHead::kAbort, reason, lost_rank);
}

void HostLink::note(const std::string& text) { tell(ControlHead::kNote, text, -1); }

void HostLink::leave(const std::string& reason) {
  if (!fork_guard_.in_creator()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_) return;
    failure_ = Failure{Failure::Kind::kAborted, topology_.rank, reason, -1};
  }
  failed_.signal();
  for (const auto& [key, stream] : streams_) stream->close();
  tell(ControlHead::kGoodbye, "", -1);
}

/// Sends one message to every peer. What does not fit into a socket's buffer is dropped: that peer
/// has stopped reading, and learns of the end from the connection.
void HostLink::tell(ControlHead::Kind kind, const std::string& text, int lost_rank) {
  ControlHead head{kind, lost_rank, static_cast<uint32_t>(std::min(text.size(), kMostText))};
  std::string message(reinterpret_cast<const char*>(&head), sizeof(head));
  message.append(text, 0, head.bytes);
  for (const Control& each : controls_) {
    if (each.socket.valid()) send_at_once(each.socket.get(), message.data(), message.size());
  }
}

// ---- The lanes

void HostLink::drive(int lane, const Wait& wait) {
  auto next_look = Clock::now() + kLook;
  Vain vain;
  while (true) {
    bool has_moved = false;
    for (const int peer : peers_) has_moved |= stream(peer, lane).progress();
    if (wait.is_done ? wait.is_done() : unfinished(lane).empty()) break;
    if (has_moved) {
      vain.nap = microseconds(0);
      continue;
    }
    for (const int peer : peers_) check_stream(peer, stream(peer, lane));
    check_usable(wait.subject, wait.collective);
    await_streams(lane, std::min(wait.deadline, next_look), vain);
    const auto now = Clock::now();
    if (now >= next_look) {
      next_look = now + kLook;
      if (wait.look) wait.look();
      if (is_interrupted()) {
        const std::string subject = wait.subject();
        abort(interrupted_text(subject));
        throw interrupted_error(subject, topology_.fault_of(unfinished(lane), wait.collective));
      }
    }
    if (now >= wait.deadline) throw_late(lane, wait);
  }
  for (const int peer : peers_) stream(peer, lane).rest();
}

/// Sleeps until a stream has something to do, or the link fails. Streams that cannot tell are
/// looked at again: a few times at once, then after naps that grow.
void HostLink::await_streams(int lane, Clock::time_point until, Vain& vain) {
  std::vector<pollfd> set{{failed_.get(), POLLIN, 0}};
  bool tell_all = true;
  for (const int peer : peers_) {
    const ByteStream& each = stream(peer, lane);
    if (each.is_idle()) continue;
    tell_all = tell_all && each.descriptor() >= 0;
    set.push_back({each.descriptor(), each.events(), 0});
  }
  if (tell_all) {
    poll_for(set, until);
  } else if (++vain.looks <= kLooksAtOnce) {
    ::sched_yield();
  } else {
    vain.nap = std::clamp(vain.nap + vain.nap / 4, kFirstNap, kLongestNap);
    const timespec nap{0, std::chrono::nanoseconds(vain.nap).count()};
    ::ppoll(set.data(), 1, &nap, nullptr);  // failed_ alone
  }
}

void HostLink::throw_late(int lane, const Wait& wait) {
  const std::vector<int> late = unfinished(lane);
  std::string names;
  for (const int rank : late) {
    names += (names.empty() ? "" : ", ") + topology_.describe(rank);
  }
  throw TimeoutError("link-timeout",
                     wait.subject() + " reached its timeout of " +
                         std::to_string(wait.timeout.count()) + " ms: " + names +
                         " did not arrive.",
                     "bytes from or to that rank are missing.",
                     "find out what that rank is doing instead (py-spy dump --pid), or "
                     "increase the timeout.",
                     topology_.fault_of(late, wait.collective));
}

std::vector<int> HostLink::unfinished(int lane) {
  std::vector<int> found;
  for (const int peer : peers_) {
    if (!stream(peer, lane).is_idle()) found.push_back(peer);
  }
  return found;
}

/// A stream that needs bytes and has ended fails the link. If the peer has closed it, the control
/// connection says why: that is waited for.
void HostLink::check_stream(int peer, const ByteStream& stream) {
  if (stream.is_idle() || stream.state() == ByteStream::State::kOpen) return;
  if (!stream.is_intact() || !failed_.is_intact()) {
    const CommError error = closed_descriptor();
    return fail_for(error.what(), std::make_exception_ptr(error));
  }
  if (stream.state() == ByteStream::State::kSilent) {
    return fail({Failure::Kind::kSilent, peer, stream.failure(), -1});
  }
  if (stream.state() == ByteStream::State::kFailed) {
    return fail({Failure::Kind::kBroken, peer, stream.failure(), -1});
  }
  const auto until = Clock::now() + kVerdictTime;
  std::vector<pollfd> set{{failed_.get(), POLLIN, 0}};
  bool has_left = false;
  bool has_ended = false;
  bool was_reset = false;
  while (!has_left && !has_ended &&
         poll_for(set, std::min(until, Clock::now() + kVerdictSlice)) <= 0 &&
         Clock::now() < until) {
    const std::lock_guard<std::mutex> lock(mutex_);
    has_left = left_.count(peer) != 0;
    const auto ended = ended_.find(peer);
    has_ended = ended != ended_.end();
    was_reset = has_ended && ended->second;
  }
  if (was_reset) {
    fail({Failure::Kind::kBroken, peer, kWhyReset, -1});
  } else if (has_ended) {
    fail({Failure::Kind::kEnded, peer, kWhyEnded, -1});
  } else if (has_left) {
    fail({Failure::Kind::kLeft, peer, "it left the group, and this rank still needs it.", -1});
  } else {
    fail({Failure::Kind::kBroken, peer, "it closed its connection.", -1});
  }
}

void HostLink::check_usable(const std::function<std::string()>& subject,
                            const std::string& collective) const {
  if (!fork_guard_.in_creator()) {
    throw CommError("forked-child",
                    "group '" + options_.group + "' was used in a forked child process.",
                    "the child shares the memory of " + topology_.name_of(topology_.rank) +
                        " but is not a rank.",
                    "call collectives only in the process that made the group, and not in "
                    "DataLoader workers.");
  }
  bool has_failed = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    has_failed = failure_.has_value();
  }
  if (has_failed) throw_failure(subject(), collective);
}

void HostLink::throw_failure(const std::string& subject, const std::string& collective) const {
  Failure failure;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    failure = *failure_;
  }
  if (failure.error) std::rethrow_exception(failure.error);
  const std::string who = topology_.describe(failure.rank);
  if (failure.kind == Failure::Kind::kLeft) {
    throw PeerFailure("peer-ended", subject + ": " + who + " left the group.",
                      topology_.name_of(failure.rank) + " ended without calling " +
                          missing_call(collective) + ".",
                      fix_of_absence(collective), topology_.fault_of({failure.rank}, collective));
  }
  if (failure.kind == Failure::Kind::kEnded) {
    throw PeerFailure("peer-ended", subject + ": " + who + " ended or left the group.",
                      failure.text, kFixOfDeath, topology_.fault_of({failure.rank}, collective));
  }
  if (failure.kind == Failure::Kind::kSilent) {
    throw PeerFailure("link-silent",
                      subject + ": " + who + " has not answered for " +
                          std::to_string(options_.silence.count()) + " ms.",
                      failure.text,
                      "check that host and the network; then restart the job or continue without "
                      "that rank.",
                      topology_.fault_of({failure.rank}, collective));
  }
  if (failure.kind == Failure::Kind::kBroken) {
    throw PeerFailure("link-broken", subject + ": the connection to " + who + " failed.",
                      failure.text,
                      "look at that rank's own output and at the network; then restart the job.",
                      topology_.fault_of({failure.rank}, collective));
  }
  if (failure.lost_rank >= 0 && failure.lost_rank == failure.rank) {
    throw PeerFailure("peer-ended", subject + ": " + who + " ended or left the group.",
                      failure.text, kFixOfDeath, topology_.fault_of({failure.rank}, collective));
  }
  if (failure.lost_rank >= 0 && failure.lost_rank != topology_.rank) {
    throw PeerFailure(
        "peer-ended-elsewhere",
        subject + ": " + who + " noticed the end of " + topology_.describe(failure.lost_rank) + ".",
        failure.text, kFixOfDeath, topology_.fault_of({failure.lost_rank}, collective));
  }
  throw AbortedError(
      "aborted", subject + " was aborted by " + who + ".", failure.text,
      "fix the cause on that rank; destroy this group and make a new one to continue.",
      topology_.fault_of({failure.rank}, collective));
}

}  // namespace farandole::comm::hosts
