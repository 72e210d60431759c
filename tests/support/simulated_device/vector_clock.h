// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace farandole::sim {

/// How many operations of each stream happen before a point in a program. Mattern, "Virtual Time
/// and Global States of Distributed Systems", 1989.
///
/// Threads: one at a time.
class VectorClock {
 public:
  uint64_t at(size_t stream) const { return stream < counts_.size() ? counts_[stream] : 0; }

  void advance(size_t stream) {
    if (counts_.size() <= stream) counts_.resize(stream + 1);
    ++counts_[stream];
  }

  /// Afterwards all that happens before `other` happens before this point too.
  void join(const VectorClock& other) {
    if (counts_.size() < other.counts_.size()) counts_.resize(other.counts_.size());
    for (size_t i = 0; i < other.counts_.size(); ++i) {
      counts_[i] = std::max(counts_[i], other.counts_[i]);
    }
  }

 private:
  std::vector<uint64_t> counts_;  ///< by stream
};

}  // namespace farandole::sim
