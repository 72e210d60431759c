// SPDX-License-Identifier: Apache-2.0
#include "comm/hosts/islands.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <utility>

#include "comm/hosts/host_map.h"
#include "comm/hosts/parts.h"
#include "comm/presence.h"
#include "comm/shm/bootstrap/bootstrap.h"
#include "comm/shm/bootstrap/liveness.h"
#include "comm/shm/bootstrap/unix_socket.h"
#include "comm/shm/shared_memory_communicator.h"
#include "comm/shm/system/segment.h"
#include "farandole/error.h"
#include "log.h"

namespace farandole::comm::hosts {
namespace {

using shm::Descriptor;
using std::chrono::milliseconds;

constexpr size_t kTokenBytes = 32;
constexpr size_t kPageBytes = 4096;
/// Silent connections that are kept beside those of ranks.
constexpr size_t kStrangers = 16;
/// How long a process that is not seen here may be one of another machine with the same ids.
constexpr milliseconds kDoubt{2000};
/// The longest pause between two looks for ranks that could not connect.
constexpr milliseconds kMostPause{100};

/// Ranks that share memory.
struct Island {
  std::vector<int> ranks;
  std::string refusal;  ///< why others of their host do not; empty: they all do
};

std::string encode(const Island& island) {
  std::string text;
  for (const int rank : island.ranks) text += std::to_string(rank) + " ";
  return text + "\n" + island.refusal;
}

Island decode(const std::string& text) {
  const size_t line = std::min(text.find('\n'), text.size());
  Island island;
  std::istringstream ranks(text.substr(0, line));
  for (int rank = 0; ranks >> rank;) island.ranks.push_back(rank);
  if (line < text.size()) island.refusal = text.substr(line + 1);
  return island;
}

/// How a rank shows that its memory can be mapped. The descriptor of the page travels beside it.
struct Proof {
  char token[kTokenBytes];   ///< the name of the listening socket
  char secret[kTokenBytes];  ///< what the page begins with
  int32_t rank;
};

/// One rank's part in finding the islands of its own host, and its view of the others'.
class Probe {
 public:
  Probe(shm::Bootstrap& bootstrap, const Topology& topology, SegmentBacking segments)
      : bootstrap_(bootstrap), topology_(topology), segments_(segments) {}

  /// The islands of a host that has the ranks `rest`.
  std::vector<Island> islands_of(std::vector<int> rest) {
    std::vector<Island> islands;
    while (!rest.empty()) {
      const Island island = rest.size() == 1 ? Island{rest, ""} : first_island_of(rest);
      islands.push_back(island);
      const auto is_in = [&](int rank) {
        return std::find(island.ranks.begin(), island.ranks.end(), rank) != island.ranks.end();
      };
      const size_t before = rest.size();
      rest.erase(std::remove_if(rest.begin(), rest.end(), is_in), rest.end());
      if (rest.size() == before) throw_foreign_store(island);
    }
    return islands;
  }

 private:
  /// `leader`: the lowest of the ranks that are left.
  static std::string key(int leader, const std::string& what) {
    return "island/" + std::to_string(leader) + "/" + what;
  }

  static std::string refused_key(int leader, int rank) {
    return key(leader, "refused/" + std::to_string(rank));
  }

  /// The one of the lowest rank.
  Island first_island_of(const std::vector<int>& rest) {
    const int leader = rest.front();
    if (leader == topology_.rank) return lead(rest);
    Descriptor socket;  // open until the verdict
    Descriptor page;
    if (std::find(rest.begin(), rest.end(), topology_.rank) != rest.end()) {
      const std::string refusal = show(leader, &socket, &page);
      if (!refusal.empty()) bootstrap_.set(refused_key(leader, topology_.rank), refusal);
    }
    return decode(bootstrap_.get(key(leader, "members"), leader));
  }

  /// Shows `leader` this rank's memory. Returns why it cannot.
  std::string show(int leader, Descriptor* socket, Descriptor* page) {
    const std::string token = bootstrap_.get(key(leader, "token"), leader);
    *socket = shm::connect_to("farandole-" + token);
    if (!socket->valid()) return std::strerror(errno);
    if (!shm::same_user(socket->get())) return "it runs as another user";
    const std::string secret = random_token();
    *page = shm::create_segment(kPageBytes, segments_);
    const auto memory = shm::Mapping::of(*page, shm::InChild::kUnmapped);
    std::memcpy(memory->data(), secret.data(), kTokenBytes);
    Proof proof{};
    token.copy(proof.token, kTokenBytes);
    secret.copy(proof.secret, kTokenBytes);
    proof.rank = topology_.rank;
    bootstrap_.await({leader}, [&](milliseconds limit) {
      return shm::send_within(socket->get(), &proof, sizeof(proof), {page->get()}, limit);
    });
    return "";
  }

  /// Finds out which of `rest`, whose lowest rank this is, share memory with this rank.
  Island lead(const std::vector<int>& rest) {
    const std::string token = random_token();
    const Descriptor listener = shm::listen_as("farandole-" + token);
    bootstrap_.set(key(topology_.rank, "token"), token);
    Island island{{topology_.rank}, ""};
    std::vector<int> missing(rest.begin() + 1, rest.end());
    std::vector<Descriptor> callers;  // that have not said anything yet
    std::vector<Descriptor> heard;    // open until the verdict
    milliseconds pause{1};
    while (!missing.empty()) {
      bool is_called = false;
      std::vector<size_t> speaking;
      bootstrap_.await(missing, [&](milliseconds limit) {
        if (shm::find_readable(listener.get(), callers, std::min(limit, pause), &is_called,
                               &speaking)) {
          return true;
        }
        pause = std::min(2 * pause, kMostPause);
        return drop_refused(&missing, &island);
      });
      for (auto index = speaking.rbegin(); index != speaking.rend(); ++index) {
        Descriptor caller = std::move(callers[*index]);
        callers.erase(callers.begin() + static_cast<std::ptrdiff_t>(*index));
        const auto [rank, is_proven] = hear(caller.get(), token);
        const auto found = std::find(missing.begin(), missing.end(), rank);
        if (found == missing.end()) continue;  // a stranger
        missing.erase(found);
        if (is_proven) {
          island.ranks.push_back(rank);
          heard.push_back(std::move(caller));
        } else {
          refuse(rank, "its memory is not the same here", &island);
        }
      }
      const auto is_awaited = [&](int socket_fd) {
        return std::any_of(missing.begin(), missing.end(), [&](int peer) {
          return shm::is_process_of(socket_fd, peer, topology_);
        });
      };
      if (is_called) {
        shm::accept_caller(listener.get(), rest.size() + kStrangers, is_awaited, &callers);
      }
    }
    std::sort(island.ranks.begin(), island.ranks.end());
    bootstrap_.set(key(topology_.rank, "members"), encode(island));
    return island;
  }

  /// Removes ranks that could not connect. True if there were any.
  bool drop_refused(std::vector<int>* missing, Island* island) {
    const auto is_refused = [&](int rank) {
      const auto reason = bootstrap_.look(refused_key(topology_.rank, rank));
      if (reason) refuse(rank, *reason, island);
      return reason.has_value();
    };
    const auto end = std::remove_if(missing->begin(), missing->end(), is_refused);
    const bool any = end != missing->end();
    missing->erase(end, missing->end());
    return any;
  }

  /// Keeps the first reason.
  void refuse(int rank, const std::string& reason, Island* island) const {
    if (!island->refusal.empty()) return;
    island->refusal = topology_.describe(rank) + " does not reach " +
                      topology_.describe(topology_.rank) + ": " + reason;
  }

  /// The rank behind a connection, and whether its memory can be mapped here; -1: a stranger.
  std::pair<int, bool> hear(int socket, const std::string& token) const {
    Proof proof{};
    std::vector<Descriptor> page;
    if (!shm::receive_whole(socket, &proof, sizeof(proof), &page) ||
        std::memcmp(proof.token, token.data(), kTokenBytes) != 0) {
      return {-1, false};
    }
    if (page.size() != 1) return {proof.rank, false};
    const auto memory = shm::Mapping::of(page.front(), shm::InChild::kUnmapped);
    const bool is_right = memory->bytes() == kPageBytes &&
                          std::memcmp(memory->data(), proof.secret, kTokenBytes) == 0;
    return {proof.rank, is_right};
  }

  [[noreturn]] void throw_foreign_store(const Island& island) const {
    throw CommError(
        "foreign-store",
        "group '" + bootstrap_.group() + "' did not form: the store holds no token of the group.",
        "the key " + bootstrap_.key("island") + " has a value of " +
            std::to_string(encode(island).size()) + " bytes.",
        "use a separate store for each job.");
  }

  shm::Bootstrap& bootstrap_;
  const Topology& topology_;
  SegmentBacking segments_;
};

/// `topology` with each of `islands` as a host of its own, counted by first rank.
Topology with_hosts(Topology topology, std::vector<Island> islands) {
  std::sort(islands.begin(), islands.end(),
            [](const Island& a, const Island& b) { return a.ranks.front() < b.ranks.front(); });
  std::vector<std::string> names;
  std::vector<int> host_of_rank(topology.host_of_rank.size());
  for (const Island& island : islands) {
    const int before = topology.host_of_rank[index_of(island.ranks.front())];
    for (const int rank : island.ranks) {
      host_of_rank[index_of(rank)] = static_cast<int>(names.size());
    }
    names.push_back(topology.host_names[index_of(before)]);
  }
  topology.host_of_rank = std::move(host_of_rank);
  topology.host_names = std::move(names);
  count_local_ranks(topology);
  return topology;
}

/// Says once a process which ranks of a host do not share memory.
void log_refusals(const std::string& group, const std::vector<Island>& islands) {
  static std::atomic<bool> is_said{false};
  std::string text;
  for (const Island& island : islands) {
    if (!island.refusal.empty()) text += (text.empty() ? "" : "; ") + island.refusal;
  }
  if (text.empty() || is_said.exchange(true)) return;
  log(LogLevel::kInfo, "group '" + group +
                           "' has ranks that seem to be on one host and do not share memory, so "
                           "they talk over the network: " +
                           text + ".");
}

}  // namespace

Topology find_islands(Store& store, const CommunicatorOptions& options,
                      const Topology& candidates) {
  const HostMap map(candidates);
  if (map.count() == candidates.world_size) return candidates;  // nobody to share memory with
  const Topology watched = with_own_processes(candidates, map);
  const shm::Liveness liveness(watched, kDoubt);
  shm::Bootstrap bootstrap(store, options.name, watched, liveness, shm::formation_timeout(options));
  std::vector<Island> islands;
  try {
    Probe probe(bootstrap, candidates, options.config.segments);
    const int own = map.host_of(candidates.rank);
    islands = probe.islands_of(map.ranks_of(own));  // first: others may wait for this rank
    for (int host = 0; host < map.count(); ++host) {
      if (host == own) continue;
      const std::vector<Island> more = probe.islands_of(map.ranks_of(host));
      islands.insert(islands.end(), more.begin(), more.end());
    }
  } catch (const std::exception& error) {
    bootstrap.tell(error);
    throw;
  }
  if (candidates.rank == 0) log_refusals(options.name, islands);
  return with_hosts(candidates, std::move(islands));
}

}  // namespace farandole::comm::hosts
