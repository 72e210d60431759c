// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_nccl/deadlock.h"

#include <algorithm>

#include "support/simulated_nccl/region.h"

namespace farandole::sim::nccl {
namespace {

bool has(uint8_t set, int rank) { return ((set >> rank) & 1) != 0; }

bool is_same_kernel(const KernelState& a, const KernelState& b) { return a.number == b.number; }

/// The second of two looks has begun after `earlier` was read.
bool has_looked_since(const KernelState& earlier, const KernelState& now) {
  return static_cast<uint16_t>(now.looks - earlier.looks) >= 2;
}

}  // namespace

std::vector<int> DeadlockWatch::look(int rank) {
  const States now = read();
  std::vector<int> path{rank};
  const auto all = [&](const auto& condition) {
    return std::all_of(path.begin(), path.end(), [&](int each) {
      const auto index = static_cast<size_t>(each);
      return condition(earlier_[index], now[index]);
    });
  };
  if (!close(path, now) || !all(is_same_kernel)) {
    earlier_ = now;
    return {};
  }
  return all(has_looked_since) ? path : std::vector<int>();
}

bool DeadlockWatch::waits(const States& states, int rank, int other) {
  const KernelState& own = states[static_cast<size_t>(rank)];
  const KernelState& theirs = states[static_cast<size_t>(other)];
  if (theirs.sends == 0 && theirs.receives == 0) return false;  // the kernel may come yet
  return (has(own.open_sends, other) && !has(theirs.receives, rank)) ||
         (has(own.open_receives, other) && !has(theirs.sends, rank));
}

bool DeadlockWatch::close(std::vector<int>& path, const States& states) {
  const int last = path.back();
  if (waits(states, last, path.front())) return true;
  for (int next = 0; next < kMaxRanks; ++next) {
    const bool is_new = std::find(path.begin(), path.end(), next) == path.end();
    if (!is_new || !waits(states, last, next)) continue;
    path.push_back(next);
    if (close(path, states)) return true;
    path.pop_back();
  }
  return false;
}

DeadlockWatch::States DeadlockWatch::read() const {
  States states{};
  for (size_t rank = 0; rank < kMaxRanks; ++rank) states[rank] = region_.ranks[rank].kernel.load();
  return states;
}

}  // namespace farandole::sim::nccl
