// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/bootstrap/liveness.h"

#include <algorithm>
#include <utility>

#include "comm/process_stat.h"

namespace farandole::comm::shm {

Liveness::Liveness(const Topology& topology, std::chrono::milliseconds doubt)
    : pids_(topology.pids),
      processes_(topology.processes),
      watches_(topology.pids.size()),
      in_doubt_until_(topology.pids.size()) {
  for (size_t rank = 0; rank < pids_.size(); ++rank) {
    if (!is_in_own_pid_namespace(processes_[rank])) continue;
    watches_[rank] = ProcessWatch::of(pids_[rank], processes_[rank]);
    if (watches_[rank]->has_ended()) {
      in_doubt_until_[rank] = std::chrono::steady_clock::now() + doubt;
    }
  }
}

bool Liveness::sees_all() const {
  return std::all_of(watches_.begin(), watches_.end(), [](const auto& watch) { return watch; });
}

void Liveness::adopt(std::vector<Descriptor> pidfds) {
  for (size_t rank = 0; rank < pids_.size(); ++rank) {
    if (watches_[rank] || !pidfds[rank].valid()) continue;
    watches_[rank] = ProcessWatch::of(pids_[rank], processes_[rank], std::move(pidfds[rank]));
  }
}

bool Liveness::is_dead(int rank) const {
  if (!watch(rank) || !watch(rank)->has_ended()) return false;
  const auto until = in_doubt_until_[static_cast<size_t>(rank)];
  return until == std::chrono::steady_clock::time_point() ||
         std::chrono::steady_clock::now() >= until;
}

std::string Liveness::cause_of_death(int rank) const {
  return watch(rank) ? watch(rank)->how_it_ended() : "ended";
}

std::optional<bool> Liveness::has_succeeded(int rank) const {
  const std::optional<int> status = watch(rank) ? watch(rank)->wait_status() : std::nullopt;
  return status ? std::optional<bool>(*status == 0) : std::nullopt;
}

}  // namespace farandole::comm::shm
