// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace farandole::sim::nccl {

constexpr int kMaxRanks = 8;
struct Region;

/// The kernel that runs on a rank, in shared memory. Sets of ranks are bits by rank; without a
/// kernel all are empty. Numbers wrap around.
struct alignas(8) KernelState {
  uint16_t number;  ///< of the kernel; changes with each
  uint16_t looks;   ///< how often the kernel has looked for messages, each before it wrote this
  uint8_t sends;    ///< to whom
  uint8_t receives;
  uint8_t open_sends;  ///< those of which a message has not been taken
  uint8_t open_receives;
};

/// Finds ranks that wait for each other: each is in a kernel that waits for a message of the next
/// one's, whose kernel has no such message. As kernels of a communicator run one after the other,
/// that lasts for ever.
///
/// What ranks write of themselves is old when it is read. So two readings must agree, between
/// which each of the ranks has looked again: it would have seen what was done for it before.
///
/// Threads: one.
class DeadlockWatch {
 public:
  explicit DeadlockWatch(const Region& region) : region_(region) {}

  /// The ranks, from `rank` around; empty if there are none, or if that is not sure yet.
  std::vector<int> look(int rank);

 private:
  using States = std::array<KernelState, kMaxRanks>;

  static bool waits(const States& states, int rank, int other);
  /// Extends `path` until its last rank waits for its first one.
  static bool close(std::vector<int>& path, const States& states);
  States read() const;

  const Region& region_;
  States earlier_{};
};

}  // namespace farandole::sim::nccl
