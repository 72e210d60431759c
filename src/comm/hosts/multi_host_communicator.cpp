// SPDX-License-Identifier: Apache-2.0
#include "comm/hosts/multi_host_communicator.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "comm/arguments.h"
#include "comm/diagnosis.h"
#include "comm/hosts/islands.h"
#include "comm/hosts/parts.h"
#include "comm/shm/bootstrap/bootstrap.h"
#include "comm/shm/bootstrap/liveness.h"
#include "comm/shm/signature_text.h"
#include "comm/shm/system/reason.h"
#include "comm/shrink.h"
#include "farandole/comm/events.h"
#include "farandole/error.h"
#include "log.h"

namespace farandole::comm::hosts {
namespace {

using std::chrono::milliseconds;

/// Slots of an area that are filled, and those in which bytes arrive; see the class.
constexpr size_t kFilled = 3;
constexpr size_t kArrived = 2;
/// The lane of collectives.
constexpr int kCollectives = 0;
constexpr int kLanes = 1;
/// By how much the link gives up later than ranks that wait for a rank of their own host to enter.
milliseconds margin_of(milliseconds timeout) { return std::max(timeout / 20, milliseconds(200)); }

/// The ranks of this host as a group of their own.
Topology island_of(const Topology& group, const HostMap& map) {
  const int host = map.host_of(group.rank);
  Topology island;
  island.rank = map.local_of(group.rank);
  island.world_size = map.size_of(host);
  island.local_rank = group.local_rank;
  island.local_world_size = group.local_world_size;
  island.local_cores = group.local_cores;
  island.host_names = {group.host_names[index_of(host)]};
  island.session = group.session + "-" + std::to_string(host);
  island.group_size = group.world_size;
  for (int rank = 0; rank < group.world_size; ++rank) {
    island.described_in_group.push_back(group.describe(rank));
  }
  for (const int rank : map.ranks_of(host)) {
    island.host_of_rank.push_back(0);
    island.pids.push_back(group.pids[index_of(rank)]);
    island.processes.push_back(group.processes[index_of(rank)]);
    island.ranks_in_group.push_back(rank);
  }
  return island;
}

/// All hosts cut tensors into the same chunks: those of rank 0.
size_t adopt_staging_bytes(shm::Bootstrap& bootstrap, const Topology& topology, size_t own) {
  if (topology.rank != 0) return std::stoull(bootstrap.get("staging_bytes"));
  bootstrap.set("staging_bytes", std::to_string(own));
  return own;
}

/// "3 (2 and 1)": hosts, and their numbers of ranks.
std::string hosts_text(const HostMap& map) {
  std::string sizes;
  for (int host = 0; host < map.count(); ++host) {
    const bool is_last = host + 1 == map.count();
    sizes += (host == 0 ? "" : is_last ? " and " : ", ") + std::to_string(map.size_of(host));
  }
  return std::to_string(map.count()) + " hosts (" + sizes + ")";
}

/// Rank 0 says once a process how ranks are joined. `address`: its own; empty if all share memory.
void log_choice(const std::string& group, const Topology& topology, const std::string& address) {
  static std::atomic<bool> is_said{false};
  if (topology.rank != 0 || topology.world_size == 1 || is_said.exchange(true)) return;
  const std::string begin =
      "group '" + group + "' has " + std::to_string(topology.world_size) + " ranks on ";
  if (address.empty()) {
    log(LogLevel::kInfo, begin + "one host: shared memory.");
  } else {
    log(LogLevel::kInfo, begin + hosts_text(HostMap(topology)) +
                             ": shared memory within a host, TCP between hosts; rank 0 is at " +
                             address + ".");
  }
}

}  // namespace

/// What a rank sends to another host ahead of the first bytes of a collective.
struct MultiHostCommunicator::Announcement {
  uint64_t sequence;
  uint64_t bytes;        ///< of the first turn, that follow in this connection
  shm::Signature call;   ///< of the host's first rank
  int64_t differing;     ///< a rank of the host that has called something else; -1: none
  shm::Signature other;  ///< what it has called
};

struct MultiHostCommunicator::LinkOfIsland {
  std::mutex mutex;
  tcp::TcpLink* link = nullptr;  ///< guarded by mutex; null before and after its life
  shm::SharedMemoryCommunicator* island = nullptr;  ///< likewise
};

std::unique_ptr<Communicator> MultiHostCommunicator::make(Store& store,
                                                          const CommunicatorOptions& asked) {
  const Topology topology =
      find_islands(store, asked, shm::SharedMemoryCommunicator::discover(store, asked));
  const HostMap map(topology);
  for (int host = 0; host < map.count(); ++host) {
    shm::SharedMemoryCommunicator::check_ranks_on_host(map.size_of(host));
  }
  if (map.count() == 1) {
    auto island = shm::SharedMemoryCommunicator::form(store, asked, topology);
    log_choice(asked.name, topology, "");
    return island;
  }
  const Topology watched = with_own_processes(topology, map);
  const shm::Liveness liveness(watched);
  shm::Bootstrap bootstrap(store, asked.name, watched, liveness, shm::formation_timeout(asked));
  std::unique_ptr<MultiHostCommunicator> made;
  try {
    CommunicatorOptions options = asked;
    options.config.staging_bytes =
        adopt_staging_bytes(bootstrap, topology, options.config.staging_bytes);
    options.while_forming = [&] {
      if (asked.while_forming) asked.while_forming();
      bootstrap.check();
    };
    made.reset(new MultiHostCommunicator(store, options, topology));
    made->options_.while_forming = nullptr;
    made->exchange_addresses();
  } catch (const std::exception& error) {
    bootstrap.tell(error);
    throw;
  }
  log_choice(asked.name, topology, made->link_->address());
  return made;
}

MultiHostCommunicator::MultiHostCommunicator(Store& store, const CommunicatorOptions& options,
                                             const Topology& topology)
    : Communicator(options.name, topology),
      map_(topology),
      host_(map_.host_of(topology.rank)),
      local_(map_.local_of(topology.rank)),
      options_(options),
      timeout_(options.config.timeout),
      area_bytes_(std::max(options.config.staging_bytes / 2, 64 * index_of(topology.world_size))),
      event_group_(group_id(options.name)),
      link_of_island_(std::make_shared<LinkOfIsland>()) {
  CommunicatorOptions of_island = options;
  of_island.rank = local_;
  of_island.world_size = map_.size_of(host_);
  of_island.before_abort = [ends = link_of_island_, next = options.before_abort] {
    {
      const std::lock_guard<std::mutex> lock(ends->mutex);
      if (ends->link != nullptr) {
        const auto [text, lost_rank] = ends->island->own_abort();
        ends->link->abort(text, lost_rank);
      }
    }
    if (next) next();
  };
  island_ = shm::SharedMemoryCommunicator::form(store, of_island, island_of(topology, map_));
  areas_ = island_->allocate_symmetric(area_bytes_ * (kFilled + kArrived));
  for (int peer = 0; peer < world_size(); ++peer) {
    if (map_.host_of(peer) != host_) remote_.push_back(peer);
  }
  relay_ = std::make_unique<tcp::MessageRelay>(tcp::MessageRelay::Options{
      remote_, topology.session, rank(), [this] { island_->point_to_point().wake(); },
      [this](const std::string& reason, int lost) { island_->abort_for(reason, lost); }});
  connect(store, options);
}

void MultiHostCommunicator::connect(Store& store, const CommunicatorOptions& options) {
  tcp::LinkOptions of_link;
  of_link.group = name();
  of_link.network_interface = options.config.network_interface;
  of_link.silence = options.config.link_timeout;
  of_link.timeout = shm::formation_timeout(options);
  of_link.while_waiting = [this, &options] {
    options.while_forming();
    island_->check_alive();
  };
  of_link.on_failure = [this](const std::string& reason, int lost_rank, int origin) {
    island_->abort_for(reason, lost_rank, origin);
  };
  of_link.on_messages = [this](int from, tcp::Socket socket) {
    relay_->accept(from, std::move(socket));
  };
  try {
    link_ =
        std::make_unique<tcp::TcpLink>(store, topology(), map_.peers_of(rank()), kLanes, of_link);
  } catch (const std::exception& error) {
    island_->abort(topology().name_of(rank()) + " gave up: " + shm::reason_of(error.what()));
    throw;
  }
  const std::lock_guard<std::mutex> lock(link_of_island_->mutex);
  link_of_island_->island = island_.get();
  link_of_island_->link = link_.get();
}

/// Every rank learns where all others take messages. The first collective, so all ranks have come.
void MultiHostCommunicator::exchange_addresses() {
  using Text = std::array<char, 64>;
  Text own{};
  link_->address().copy(own.data(), own.size() - 1);
  std::vector<Text> all(index_of(world_size()));
  all_gather(own.data(), all.data(), own.size(), DataType::kUInt8, {});
  std::vector<tcp::NetworkAddress> addresses;
  Topology peers = topology();
  const auto put = [&](int peer) {
    const size_t index = index_of(peer);
    peers.ranks_in_group.push_back(peer);
    peers.pids.push_back(topology().pids[index]);
    peers.processes.push_back(topology().processes[index]);
    peers.host_of_rank.push_back(topology().host_of_rank[index]);
  };
  peers.ranks_in_group.clear();
  peers.pids.clear();
  peers.processes.clear();
  peers.host_of_rank.clear();
  for (const int peer : map_.ranks_of(host_)) put(peer);
  for (const int peer : remote_) {
    put(peer);
    addresses.push_back(tcp::NetworkAddress::parse(all[index_of(peer)].data()));
  }
  peers.rank = local_;
  peers.group_size = world_size();
  relay_->set_addresses(*link_, std::move(addresses));
  island_->point_to_point().add_remote(*relay_, peers);
}

MultiHostCommunicator::~MultiHostCommunicator() {
  if (island_->lockstep().in_creator()) {  // else another thread may have held the mutex
    const std::lock_guard<std::mutex> lock(link_of_island_->mutex);
    link_of_island_->link = nullptr;
  }
  relay_->stop();  // its thread begins connections of the link; the link's finds it ended
}

// ---- A call

MultiHostCommunicator::Call MultiHostCommunicator::begin(OpKind operation, size_t count,
                                                         DataType dtype,
                                                         const CollectiveOptions& options) {
  if (failure_ && island_->lockstep().in_creator()) std::rethrow_exception(failure_);
  try {
    check_usable();
  } catch (const CommError&) {
    failure_ = std::current_exception();
    throw;
  }
  Call call{};
  call.signature.operation = operation;
  call.signature.dtype = dtype;
  call.signature.root = -1;
  call.signature.count = count;
  call.element_bytes = size_of(dtype);
  call.timeout = timeout_of(options);
  call.sleep_at_once = options.sleep_at_once;
  call.deadline = Clock::now() + call.timeout + margin_of(call.timeout);
  call.begin_ticks = kDiagnosis ? event_ticks() : 0;
  return call;
}

milliseconds MultiHostCommunicator::timeout_of(const CollectiveOptions& options) const {
  return std::min(options.timeout.count() > 0 ? options.timeout : timeout_.load(),
                  shm::kMostTimeout);
}

/// Whatever other error than a mismatch ends a collective, it ends the group.
void MultiHostCommunicator::run(Call& call, const std::function<void()>& body) {
  try {
    body();
  } catch (const MismatchError&) {
    throw;
  } catch (const Error& error) {
    failure_ = std::current_exception();
    const auto* lost = dynamic_cast<const PeerFailure*>(&error);
    island_->abort_for(topology().name_of(rank()) + " gave up: " + shm::reason_of(error.what()),
                       lost == nullptr ? -1 : lost->rank().value_or(-1));
    throw;
  } catch (const std::exception& error) {
    failure_ = std::current_exception();
    island_->abort(topology().name_of(rank()) + " gave up in " + text_of(call) + ": " +
                   error.what());
    throw;
  }
}

/// Takes `total` through the areas in chunks; at least one, so that all ranks meet.
void MultiHostCommunicator::pass(Call& call, size_t total, size_t chunk_size,
                                 const Phases& phases) {
  const auto launch = [&](size_t begin) {
    Chunk chunk{begin, std::min(chunk_size, total - begin), ++turn_, {}};
    phases.fill(chunk);
    meet(call);
    phases.launch(chunk);
    return chunk;
  };
  std::deque<Chunk> pending{launch(0)};  // the last one is launched, those before are combined
  const auto finish_until = [&](size_t kept) {
    for (; pending.size() > kept; pending.pop_front()) phases.finish(pending.front());
  };
  while (pending.back().begin + pending.back().size < total) {
    pending.push_back(launch(pending.back().begin + pending.back().size));
    if (phases.combine) phases.combine(pending[pending.size() - 2]);
    finish_until(phases.combine ? 2 : 1);
  }
  finish_until(1);
  if (phases.combine) phases.combine(pending.back());
  finish_until(0);
}

/// The ranks of this host meet. In the first turn they show each other their calls.
void MultiHostCommunicator::meet(Call& call) {
  if (call.has_entered) return step(call);
  call.has_entered = true;
  CollectiveOptions options;
  options.timeout = call.timeout;
  options.sleep_at_once = call.sleep_at_once;
  try {
    island_->enter_for(call.signature, options);
  } catch (const MismatchError&) {
    announce(call, {}, /*differs=*/true);  // the other hosts wait for that
    hear_announcements(call, /*differs=*/true);
  }
}

void MultiHostCommunicator::step(const Call& call) const {
  island_->step_for(call.timeout + 2 * margin_of(call.timeout));  // later than the link
}

/// Queues what this rank sends and receives in a turn, with each peer in the order of the lists.
void MultiHostCommunicator::queue(Call& call, Chunk& chunk, const Moves& sends,
                                  const Moves& receives) {
  const bool is_first = !call.has_announced;
  if (is_first) chunk.marks = announce(call, sends, /*differs=*/false);
  for (const Move& each : sends) {
    const uint64_t mark = link_->stream(each.peer, kCollectives).send(each.data, each.bytes);
    chunk.marks.push_back({each.peer, mark, 0});
  }
  if (is_first) hear_announcements(call, /*differs=*/false);
  for (const Move& each : receives) {
    const uint64_t mark = link_->stream(each.peer, kCollectives).receive(each.data, each.bytes);
    chunk.marks.push_back({each.peer, 0, mark});
  }
}

void MultiHostCommunicator::await(const Call& call, const Chunk& chunk) const {
  drive(call, [&] { return has_moved(chunk.marks); });
}

bool MultiHostCommunicator::has_moved(const std::vector<Mark>& marks) const {
  return std::all_of(marks.begin(), marks.end(), [&](const Mark& mark) {
    const tcp::TcpStream& stream = link_->stream(mark.peer, kCollectives);
    return stream.sent() >= mark.sent && stream.received() >= mark.received;
  });
}

void MultiHostCommunicator::drive(const Call& call, const std::function<bool()>& is_done) const {
  link_->drive(kCollectives, {call.timeout, call.deadline, is_done, [&] { return text_of(call); },
                              comm::name_of(call.signature.operation),
                              [&] { island_->lockstep().check_peers_in_collective(); }});
}

// ---- Announcements

MultiHostCommunicator::Announcement MultiHostCommunicator::own_announcement(const Call& call,
                                                                            bool differs) const {
  Announcement own{};
  own.sequence = island_->lockstep().sequence();
  own.call = differs ? island_->signature_of(0) : call.signature;
  own.differing = -1;
  for (int local = 1; differs && local < map_.size_of(host_); ++local) {
    const shm::Signature other = island_->signature_of(local);
    if (shm::is_same_call(own.call, other)) continue;
    own.differing = map_.rank_of(host_, local);
    own.other = other;
    break;
  }
  return own;
}

/// Tells each rank that this one sends to what its host has called, and how much follows.
std::vector<MultiHostCommunicator::Mark> MultiHostCommunicator::announce(Call& call,
                                                                         const Moves& sends,
                                                                         bool differs) {
  std::vector<Mark> marks;
  announced_.clear();
  announced_.reserve(link_->peers().size());  // streams keep addresses
  for (const int peer : link_->peers()) {
    if (!map_.sends(rank(), peer)) continue;
    announced_.push_back(own_announcement(call, differs));
    for (const Move& each : sends) announced_.back().bytes += each.peer == peer ? each.bytes : 0;
    tcp::TcpStream& stream = link_->stream(peer, kCollectives);
    marks.push_back({peer, stream.send(&announced_.back(), sizeof(Announcement)), 0});
  }
  call.has_announced = true;
  return marks;
}

/// Reads what the other hosts have called. All ranks of all hosts read the same announcements, so
/// all throw or none.
void MultiHostCommunicator::hear_announcements(const Call& call, bool differs) {
  std::vector<Announcement> heard(index_of(map_.count()));
  heard[index_of(host_)] = own_announcement(call, differs);
  std::vector<Mark> marks;
  for (int host = 0; host < map_.count(); ++host) {
    if (host == host_) continue;
    const int peer = map_.sender_to(rank(), host);
    tcp::TcpStream& stream = link_->stream(peer, kCollectives);
    marks.push_back({peer, 0, stream.receive(&heard[index_of(host)], sizeof(Announcement))});
  }
  drive(call, [&] { return has_moved(marks); });
  const Announcement& own = heard[index_of(host_)];
  for (const Announcement& each : heard) {
    if (each.sequence == own.sequence && each.bytes <= area_bytes_ * index_of(world_size()))
      continue;
    throw CommError("hosts-out-of-step",
                    text_of(call) + ": another host sent what does not belong there.",
                    "it counts " + std::to_string(each.sequence) +
                        " collectives so far, this one " + std::to_string(own.sequence) + ".",
                    "report it, with the logs of all ranks.");
  }
  const bool all_agree = std::all_of(heard.begin(), heard.end(), [&](const Announcement& each) {
    return each.differing < 0 && shm::is_same_call(each.call, heard.front().call);
  });
  if (all_agree) return;
  drop(call, heard);
  throw_mismatch(call, heard);
}

/// Reads what follows the announcements, and has all sent that is queued.
void MultiHostCommunicator::drop(const Call& call, const std::vector<Announcement>& heard) {
  uint64_t most = 0;
  for (const Announcement& each : heard) most = std::max(most, each.bytes);
  std::vector<std::byte> dropped(most);
  for (int host = 0; host < map_.count(); ++host) {
    if (host == host_) continue;
    link_->stream(map_.sender_to(rank(), host), kCollectives)
        .receive(dropped.data(), heard[index_of(host)].bytes);
  }
  drive(call, nullptr);
}

void MultiHostCommunicator::throw_mismatch(const Call& own_call,
                                           const std::vector<Announcement>& heard) const {
  const shm::Signature& reference = heard.front().call;
  std::vector<int> differing;
  const shm::Signature* other = nullptr;
  const auto add = [&](int rank, const shm::Signature& call) {
    if (shm::is_same_call(call, reference)) return;
    if (other == nullptr || rank < differing.front()) other = &call;
    differing.insert(std::upper_bound(differing.begin(), differing.end(), rank), rank);
  };
  for (int host = 0; host < map_.count(); ++host) {
    const Announcement& each = heard[index_of(host)];
    add(map_.rank_of(host, 0), each.call);
    if (each.differing >= 0) add(static_cast<int>(each.differing), each.other);
  }
  throw MismatchError("collective-mismatch",
                      "collective #" + std::to_string(heard.front().sequence) + " in group '" +
                          name() + "': " + topology().name_of(map_.rank_of(0, 0)) + " called " +
                          shm::text_of(reference) + ", " + topology().name_of(differing.front()) +
                          " called " + shm::text_of(*other) + ".",
                      "every rank of a group must call the same collectives in the same order.",
                      "look for code that depends on the rank, or for tensors of different sizes.",
                      topology().fault_of(differing, comm::name_of(own_call.signature.operation)));
}

std::string MultiHostCommunicator::text_of(const Call& call) const {
  return "collective #" + std::to_string(island_->lockstep().sequence()) + " " +
         shm::text_of(call.signature) + " in group '" + name() + "' on " +
         topology().own_position();
}

// ---- Areas

std::byte* MultiHostCommunicator::filled(int local, const Chunk& chunk) const {
  return static_cast<std::byte*>(areas_->peer(local)) + chunk.turn % kFilled * area_bytes_;
}

std::byte* MultiHostCommunicator::arrived(int local, const Chunk& chunk) const {
  return static_cast<std::byte*>(areas_->peer(local)) +
         (kFilled + chunk.turn % kArrived) * area_bytes_;
}

// ---- The rest of the interface

void MultiHostCommunicator::record_event(const Call& call, size_t bytes) const {
  if (!kDiagnosis) return;
  Event event;
  event.operation = call.signature.operation;
  const int latest = island_->lockstep().latest_rank();
  event.latest_rank = static_cast<int16_t>(latest < 0 ? -1 : map_.rank_of(host_, latest));
  event.group = event_group_;
  event.sequence = island_->lockstep().sequence();
  event.bytes = bytes;
  event.begin_ns = call.begin_ticks;
  event.arrived_ns = call.begin_ticks;
  event.end_ns = event_ticks();
  record(event);
}

void MultiHostCommunicator::barrier(const CollectiveOptions& options) {
  Call call = begin(OpKind::kBarrier, 0, DataType::kUInt8, options);
  run(call, [&] {
    // A rank that has heard a host knows that all ranks of that host have entered.
    const Phases phases{[](const Chunk&) {}, [&](Chunk& chunk) { queue(call, chunk, {}, {}); },
                        [&](Chunk& chunk) { await(call, chunk); }};
    pass(call, 0, 1, phases);
  });
  record_event(call, 0);
}

/// Ranks of this host come first, then the others; see PointToPoint.
int MultiHostCommunicator::transfer_peer(int rank) const {
  if (rank == kAnySource) return rank;
  if (map_.host_of(rank) == host_) return map_.local_of(rank);
  const auto found = std::lower_bound(remote_.begin(), remote_.end(), rank);
  return map_.size_of(host_) + static_cast<int>(found - remote_.begin());
}

std::shared_ptr<Transfer> MultiHostCommunicator::send(const void* data, size_t bytes,
                                                      int destination, uint64_t tag,
                                                      const CollectiveOptions& options) {
  check_peer("send", "destination", destination, 0, world_size());
  check_usable();
  check_message("send", data, bytes);
  auto* bytes_to_send = static_cast<std::byte*>(const_cast<void*>(data));  // only read
  return island_->point_to_point().send(
      {bytes_to_send, bytes, transfer_peer(destination), tag, timeout_of(options)});
}

std::shared_ptr<Transfer> MultiHostCommunicator::receive(void* data, size_t bytes, int source,
                                                         uint64_t tag,
                                                         const CollectiveOptions& options) {
  check_peer("receive", "source", source, kAnySource, world_size());
  check_usable();
  check_message("receive", data, bytes);
  return island_->point_to_point().receive(
      {static_cast<std::byte*>(data), bytes, transfer_peer(source), tag, timeout_of(options)});
}

void MultiHostCommunicator::check_usable() const {
  if (island_->lockstep().in_creator()) {
    link_->check_usable([this] { return "group '" + name() + "'"; });
  }
  island_->check_usable();
}

void MultiHostCommunicator::check_alive() const {
  check_usable();
  island_->check_alive();
}

void MultiHostCommunicator::abort(const std::string& reason) { island_->abort(reason); }

void MultiHostCommunicator::set_timeout(milliseconds timeout) {
  timeout_.store(timeout);
  island_->set_timeout(timeout);
}

std::unique_ptr<Communicator> MultiHostCommunicator::shrink(const std::vector<int>& excluded,
                                                            Store& store) {
  CommunicatorOptions options = options_of_shrunk(*this, options_, excluded);
  options.config.timeout = timeout_;
  return make(store, options);
}

}  // namespace farandole::comm::hosts
