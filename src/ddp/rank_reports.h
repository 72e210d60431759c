// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "farandole/comm/fingerprint.h"
#include "farandole/ddp/replica_group.h"

namespace farandole {

// How ranks agree: every rank sends a report, all ranks get all reports, and all check them in the
// same way, with the same result. A report is a Head of numbers, then bytes of any kind, as many on
// every rank. Its last bytes may be details, which ranks agree on unless something is unusual:
// where reports travel as messages, details travel as a fingerprint, and themselves if they differ,
// so that messages do not grow with the number of parameters.

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
  /// `tail_bytes`: behind the head, of which the last `detail_bytes` are details.
  RankReports(const ReplicaGroup& group, size_t tail_bytes, size_t detail_bytes)
      : group_(group),
        bytes_(sizeof(Head) + tail_bytes),
        detail_bytes_(detail_bytes),
        own_(bytes_),
        all_(bytes_ * static_cast<size_t>(group.world_size())) {}

  /// Writes this rank's report. Returns its bytes behind the head, which are 0, to be filled.
  std::byte* write(const Head& head) {
    std::fill(own_.begin(), own_.end(), std::byte{0});
    std::memcpy(own_.data(), &head, sizeof(head));
    return own_.data() + sizeof(head);
  }
  /// At once; see ReplicaGroup::exchange(). Collective.
  void exchange() {
    if (!hashes_details()) return group_.exchange(own_.data(), all_.data(), bytes_);
    exchange_hashing([this](const Bytes& sent) {
      Bytes received(sent.size() * static_cast<size_t>(world_size()));
      group_.exchange(sent.data(), received.data(), sent.size());
      return received;
    });
  }
  /// After the collectives that this rank has started in the group. `timeout`: nullopt: the
  /// group's. Collective.
  void exchange_in_order(std::optional<std::chrono::milliseconds> timeout = std::nullopt) {
    const auto gather = [&](const Bytes& sent) { return group_.all_gather(sent, timeout); };
    if (hashes_details()) return exchange_hashing(gather);
    all_ = gather(own_);
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
  using Bytes = std::vector<std::byte>;

  const std::byte* report(int rank) const {
    return all_.data() + static_cast<size_t>(rank) * bytes_;
  }
  /// The same on all ranks.
  bool hashes_details() const {
    return detail_bytes_ > sizeof(comm::Fingerprint) && world_size() > 1 &&
           !group_.shared_communicator();
  }

  /// `gather`: what every rank passes, in rank order. All ranks find the same ones, so all
  /// exchange details or none does.
  template <class Gather>
  void exchange_hashing(const Gather& gather) {
    const size_t short_bytes = bytes_ - detail_bytes_;
    const Bytes details(own_.end() - static_cast<std::ptrdiff_t>(detail_bytes_), own_.end());
    const std::string_view text(reinterpret_cast<const char*>(details.data()), detail_bytes_);
    const comm::Fingerprint hash = comm::fingerprint_of(text);
    const auto* const hashed = reinterpret_cast<const std::byte*>(&hash);
    Bytes sent(own_.begin(), own_.end() - static_cast<std::ptrdiff_t>(detail_bytes_));
    sent.insert(sent.end(), hashed, hashed + sizeof(hash));
    const Bytes received = gather(sent);
    bool are_equal = true;
    for (int rank = 0; rank < world_size(); ++rank) {
      const std::byte* const of_rank = received.data() + static_cast<size_t>(rank) * sent.size();
      are_equal = are_equal && std::memcmp(of_rank + short_bytes, &hash, sizeof(hash)) == 0;
      std::memcpy(to_report(rank), of_rank, short_bytes);
    }
    const Bytes all_details = are_equal ? Bytes() : gather(details);
    for (int rank = 0; rank < world_size(); ++rank) {
      const std::byte* const of_rank =
          are_equal ? details.data()
                    : all_details.data() + static_cast<size_t>(rank) * detail_bytes_;
      std::memcpy(to_report(rank) + short_bytes, of_rank, detail_bytes_);
    }
  }
  std::byte* to_report(int rank) { return all_.data() + static_cast<size_t>(rank) * bytes_; }

  const ReplicaGroup& group_;
  const size_t bytes_;
  const size_t detail_bytes_;
  Bytes own_;
  Bytes all_;  ///< in rank order
};

}  // namespace farandole
