// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_nccl/deadlock.h"

#include <algorithm>
#include <array>

#include "support/simulated_nccl/region.h"

namespace farandole::sim::nccl {
namespace {

using States = std::array<KernelState, kMaxRanks>;

bool has(uint8_t set, int rank) { return ((set >> rank) & 1) != 0; }

States read(const Region& region) {
  States states{};
  for (size_t rank = 0; rank < kMaxRanks; ++rank) states[rank] = region.ranks[rank].kernel.load();
  return states;
}

bool waits(const States& states, int rank, int other) {
  const KernelState& own = states[static_cast<size_t>(rank)];
  const KernelState& theirs = states[static_cast<size_t>(other)];
  if (theirs.sends == 0 && theirs.receives == 0) return false;  // the kernel may come yet
  return (has(own.open_sends, other) && !has(theirs.receives, rank)) ||
         (has(own.open_receives, other) && !has(theirs.sends, rank));
}

/// Extends `path` until its last rank waits for its first one.
bool close(std::vector<int>& path, const States& states, int world_size) {
  const int last = path.back();
  if (waits(states, last, path.front())) return true;
  for (int next = 0; next < world_size; ++next) {
    const bool is_new = std::find(path.begin(), path.end(), next) == path.end();
    if (!is_new || !waits(states, last, next)) continue;
    path.push_back(next);
    if (close(path, states, world_size)) return true;
    path.pop_back();
  }
  return false;
}

}  // namespace

std::vector<int> find_deadlock(const Region& region, int rank, int world_size) {
  const States states = read(region);
  std::vector<int> path{rank};
  if (!close(path, states, world_size)) return {};
  // While a kernel runs, nobody gets from it what it does not have: what was read one after the
  // other was true at once if the kernels are still the same.
  const States now = read(region);
  const auto has_moved = [&](int each) {
    const auto index = static_cast<size_t>(each);
    return states[index].number != now[index].number;
  };
  return std::any_of(path.begin(), path.end(), has_moved) ? std::vector<int>() : path;
}

}  // namespace farandole::sim::nccl
