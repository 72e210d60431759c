// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <type_traits>
#include <vector>

#include "farandole/ddp/replica_group.h"

namespace farandole {

// How ranks agree: every rank sends a report, all ranks get all reports, and all check them in the
// same way, with the same result. A report is a Head of numbers, then bytes of any kind, as many on
// every rank.

template <class Head>
Head head_of_report(const std::byte* report) {
  static_assert(std::is_trivially_copyable_v<Head>);
  Head head;
  std::memcpy(&head, report, sizeof(head));
  return head;
}

/// The reports of all ranks in one exchange. Keeps its memory. Threads: one call at a time.
template <class Head>
class RankReports {
 public:
  /// `tail_bytes`: behind the head.
  RankReports(const ReplicaGroup& group, size_t tail_bytes)
      : group_(group),
        bytes_(sizeof(Head) + tail_bytes),
        own_(bytes_),
        all_(bytes_ * static_cast<size_t>(group.world_size())) {}

  /// Writes this rank's report. Returns its bytes behind the head, which are 0, to be filled.
  std::byte* write(const Head& head) {
    std::fill(own_.begin(), own_.end(), std::byte{0});
    std::memcpy(own_.data(), &head, sizeof(head));
    return own_.data() + sizeof(head);
  }
  /// At once; see ReplicaGroup::exchange(). Collective.
  void exchange() { group_.exchange(own_.data(), all_.data(), bytes_); }
  /// After the collectives that this rank has started in the group. `timeout`: nullopt: the
  /// group's. Collective.
  void exchange_in_order(std::optional<std::chrono::milliseconds> timeout = std::nullopt) {
    all_ = group_.all_gather(own_, timeout);
  }

  Head head(int rank) const { return head_of_report<Head>(report(rank)); }
  const std::byte* tail(int rank) const { return report(rank) + sizeof(Head); }
  size_t tail_bytes() const { return bytes_ - sizeof(Head); }
  int world_size() const { return group_.world_size(); }
  /// The lowest rank whose head fulfils `predicate`; world_size() if there is none.
  template <class Predicate>
  int find(const Predicate& predicate) const {
    int rank = 0;
    while (rank < world_size() && !predicate(head(rank))) ++rank;
    return rank;
  }
  template <class Predicate>
  bool any(const Predicate& predicate) const {
    return find(predicate) != world_size();
  }

 private:
  const std::byte* report(int rank) const {
    return all_.data() + static_cast<size_t>(rank) * bytes_;
  }

  const ReplicaGroup& group_;
  const size_t bytes_;
  std::vector<std::byte> own_;
  std::vector<std::byte> all_;  ///< in rank order
};

}  // namespace farandole
