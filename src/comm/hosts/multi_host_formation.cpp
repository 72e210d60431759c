// SPDX-License-Identifier: Apache-2.0
// How the ranks of several hosts become a group; see MultiHostCommunicator::make().
#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "comm/hosts/islands.h"
#include "comm/hosts/multi_host_communicator.h"
#include "comm/hosts/parts.h"
#include "comm/mpi_loader.h"
#include "comm/shm/bootstrap/bootstrap.h"
#include "comm/shm/bootstrap/liveness.h"
#include "comm/shm/system/reason.h"
#include "farandole/comm/events.h"
#include "farandole/comm/interrupt.h"
#include "farandole/error.h"
#include "log.h"

namespace farandole::comm::hosts {
namespace {

/// Of the link: that of collectives.
constexpr int kLanes = 1;

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

/// All ranks take the chunks of tensors that rank 0 has, and must have its link.
void adopt_layout(shm::Bootstrap& bootstrap, const Topology& topology, Config& config) {
  const auto name_of = [](HostLinkChoice link) {
    return std::string(link == HostLinkChoice::kMpi ? "mpi" : "tcp");
  };
  if (topology.rank == 0) {
    bootstrap.set("layout", std::to_string(config.staging_bytes) + " " + name_of(config.link));
    return;
  }
  std::istringstream text(bootstrap.get("layout"));
  std::string link;
  text >> config.staging_bytes >> link;
  if (link == name_of(config.link)) return;
  throw MismatchError("link-differs",
                      "group '" + bootstrap.group() +
                          "' cannot join its hosts: FARANDOLE_LINK is " + link + " on rank 0 and " +
                          name_of(config.link) + " on rank " + std::to_string(topology.rank) + ".",
                      "both ends of a stream must be of one kind.",
                      "set it to the same value for all ranks.");
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
void log_choice(const std::string& group, const Topology& topology, const std::string& address,
                HostLinkChoice link) {
  static std::atomic<bool> is_said{false};
  if (topology.rank != 0 || topology.world_size == 1 || is_said.exchange(true)) return;
  const std::string begin =
      "group '" + group + "' has " + std::to_string(topology.world_size) + " ranks on ";
  if (address.empty()) {
    log(LogLevel::kInfo, begin + "one host: shared memory.");
  } else {
    log(LogLevel::kInfo, begin + hosts_text(HostMap(topology)) + ": shared memory within a host, " +
                             (link == HostLinkChoice::kMpi ? "MPI" : "TCP") +
                             " between hosts; rank 0 is at " + address + ".");
  }
}

/// Rank 0 says once a process what protects nothing.
void log_openness(const Topology& topology, const std::string& address, const std::string& secret) {
  static std::atomic<bool> is_said{false};
  if (topology.rank != 0 || !secret.empty() || is_said.exchange(true)) return;
  log(LogLevel::kInfo,
      "the job has no secret, so a process on another host that reaches the ranks' store and " +
          address +
          " can join as a rank. Set FARANDOLE_JOB_SECRET to the same value for all ranks; "
          "`farandole run` does this if it starts all of them.");
}

}  // namespace

struct MultiHostCommunicator::LinkOfIsland {
  std::mutex mutex;
  HostLink* link = nullptr;  ///< guarded by mutex; null before and after its life
  shm::SharedMemoryCommunicator* island = nullptr;  ///< likewise
  LinkWaits* waits = nullptr;                       ///< likewise
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
    log_choice(asked.name, topology, "", asked.config.link);
    return island;
  }
  const Topology watched = with_own_processes(topology, map);
  const shm::Liveness liveness(watched);
  shm::Bootstrap bootstrap(store, asked.name, watched, liveness, shm::formation_timeout(asked));
  CommunicatorOptions options = asked;
  try {
    adopt_layout(bootstrap, topology, options.config);
  } catch (const std::exception& error) {
    bootstrap.tell(error);
    throw;
  }
  std::shared_ptr<StreamSource> streams;
  if (options.config.link == HostLinkChoice::kMpi) {
    streams = open_mpi_streams(store, bootstrap, topology);
  }
  std::unique_ptr<MultiHostCommunicator> made;
  try {
    options.while_forming = [&](const IsAbsent& is_absent) {
      if (asked.while_forming) asked.while_forming(is_absent);
      bootstrap.check();
    };
    made.reset(new MultiHostCommunicator(store, options, topology, std::move(streams)));
    made->options_.while_forming = nullptr;
    made->exchange_addresses();
  } catch (const std::exception& error) {
    bootstrap.tell(error);
    throw;
  }
  log_choice(asked.name, topology, made->link_->address(), asked.config.link);
  log_openness(topology, made->link_->address(), asked.config.job_secret);
  return made;
}

MultiHostCommunicator::MultiHostCommunicator(Store& store, const CommunicatorOptions& options,
                                             const Topology& topology,
                                             std::shared_ptr<StreamSource> streams)
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
        ends->waits->end();
      }
    }
    if (next) next();
  };
  island_ = shm::SharedMemoryCommunicator::form(store, of_island, island_of(topology, map_));
  areas_ = island_->allocate_symmetric(area_bytes_ * (kFilled + kArrived));
  for (int peer = 0; peer < world_size(); ++peer) {
    if (map_.host_of(peer) != host_) remote_.push_back(peer);
  }
  relay_ = std::make_unique<MessageRelay>(MessageRelay::Options{
      remote_, tcp::Identity(options.config.job_secret, topology.session, rank()), rank(),
      [this] { island_->point_to_point().wake(); },
      [this](const std::string& reason, int lost) { island_->abort_for(reason, lost); }});
  connect(store, options, std::move(streams));
}

void MultiHostCommunicator::connect(Store& store, const CommunicatorOptions& options,
                                    std::shared_ptr<StreamSource> streams) {
  LinkOptions of_link;
  of_link.group = name();
  of_link.secret = options.config.job_secret;
  of_link.network_interface = options.config.network_interface;
  of_link.silence = options.config.link_timeout;
  of_link.timeout = shm::formation_timeout(options);
  of_link.while_waiting = [this, &options] {
    options.while_forming([](int /*rank*/) { return false; });  // all have come
    island_->check_alive();
    check_forming_not_interrupted(name());
  };
  of_link.on_failure = [this](const std::string& reason, int lost_rank, int origin) {
    island_->abort_for(reason, lost_rank, origin);
  };
  of_link.on_messages = [this](int from, PrivateDescriptor socket) {
    relay_->accept(from, std::move(socket));
  };
  of_link.on_note = [this](int peer, const std::string& news) { waits_->hear(peer, news); };
  of_link.streams = std::move(streams);
  waits_ = std::make_unique<LinkWaits>(name(), topology());
  try {
    link_ = std::make_unique<HostLink>(store, topology(), map_.peers_of(rank()), kLanes, of_link);
  } catch (const std::exception& error) {
    island_->abort(topology().name_of(rank()) + " gave up: " + shm::reason_of(error.what()));
    throw;
  }
  const std::lock_guard<std::mutex> lock(link_of_island_->mutex);
  link_of_island_->island = island_.get();
  link_of_island_->link = link_.get();
  link_of_island_->waits = waits_.get();
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

}  // namespace farandole::comm::hosts
