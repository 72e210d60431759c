// SPDX-License-Identifier: Apache-2.0
#include "farandole/comm/topology.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "comm/cores.h"
#include "comm/process_stat.h"
#include "farandole/error.h"

namespace farandole::comm {
namespace {

using Clock = std::chrono::steady_clock;

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id.empty() ? "unknown-boot" : id;
}

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

/// What one rank publishes, one line each.
struct Identity {
  std::string host_id;
  std::string host_name;
  std::string cores;
  std::string process;  ///< see Topology::processes
  int pid = 0;

  std::string encode() const {
    return host_id + "\n" + host_name + "\n" + cores + "\n" + process + "\n" + std::to_string(pid);
  }
  static Identity decode(const std::string& text) {
    std::istringstream lines(text);
    Identity identity;
    std::getline(lines, identity.host_id);
    std::getline(lines, identity.host_name);
    std::getline(lines, identity.cores);
    std::getline(lines, identity.process);
    lines >> identity.pid;
    return identity;
  }
};

std::string key_of(const std::string& group, int rank) {
  return "farandole/" + group + "/identity/" + std::to_string(rank);
}

std::string joined(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

[[noreturn]] void throw_absent(const std::string& group, int rank, int world_size,
                               const std::vector<int>& absent, std::chrono::milliseconds timeout) {
  throw TimeoutError(
      "group '" + group + "' did not form: rank " + joined(absent) +
          " did not come (seen by rank " + std::to_string(rank) + " of " +
          std::to_string(world_size) + ").",
      "no word from it in the store after " + std::to_string(timeout.count()) + " ms.",
      "see whether that rank started, and with the same store address, world size and group.");
}

/// Identities of all ranks; waits until the deadline for the first, then only looks for the rest,
/// so that the error names everyone who is missing.
std::vector<Identity> collect(Store& store, const std::string& group, int rank, int world_size,
                              std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  std::vector<Identity> identities;
  std::vector<int> absent;
  for (int peer = 0; peer < world_size; ++peer) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    const auto text = store.get(key_of(group, peer), std::max(left, std::chrono::milliseconds(20)));
    if (text) {
      identities.push_back(Identity::decode(*text));
    } else {
      absent.push_back(peer);
    }
  }
  if (!absent.empty()) throw_absent(group, rank, world_size, absent, timeout);
  return identities;
}

}  // namespace

std::string Topology::describe(int peer) const {
  const auto index = static_cast<size_t>(peer);
  std::string text = "rank " + std::to_string(peer);
  if (index >= pids.size() || index >= host_of_rank.size()) return text;
  return text + " (pid " + std::to_string(pids[index]) + " on " +
         host_names[static_cast<size_t>(host_of_rank[index])] + ")";
}

Topology discover_topology(Store& store, const std::string& group, int rank, int world_size,
                           const std::string& host_id, std::chrono::milliseconds timeout) {
  const Identity own{host_id.empty() ? boot_id() : host_id, host_name(), allowed_cores(),
                     identity_of(read_process_stat("self")), static_cast<int>(::getpid())};
  store.set(key_of(group, rank), own.encode());
  Topology topology;
  topology.rank = rank;
  topology.world_size = world_size;
  std::vector<std::string> host_ids;
  std::vector<std::string> local_cores;
  topology.local_world_size = 0;
  for (const Identity& peer : collect(store, group, rank, world_size, timeout)) {
    const auto known = std::find(host_ids.begin(), host_ids.end(), peer.host_id);
    const int host = static_cast<int>(known - host_ids.begin());
    if (known == host_ids.end()) {
      host_ids.push_back(peer.host_id);
      topology.host_names.push_back(peer.host_name);
    }
    const int peer_rank = static_cast<int>(topology.pids.size());
    topology.host_of_rank.push_back(host);
    topology.pids.push_back(peer.pid);
    topology.processes.push_back(peer.process);
    if (peer.host_id != own.host_id) continue;
    if (peer_rank == rank) topology.local_rank = topology.local_world_size;
    ++topology.local_world_size;
    local_cores.push_back(peer.cores);
  }
  topology.local_cores = std::min(count_cores(local_cores), cgroup_core_quota());
  return topology;
}

}  // namespace farandole::comm
