// SPDX-License-Identifier: Apache-2.0
#include "support/all_pairs.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

namespace farandole::test {
namespace {

/// Which pairs of values have occurred.
class Coverage {
 public:
  explicit Coverage(const std::vector<Combination>& all) : sizes_(all.front().size(), 0) {
    for (const Combination& row : all) {
      for (size_t p = 0; p < row.size(); ++p) sizes_[p] = std::max(sizes_[p], row[p] + 1);
    }
    size_t pairs = 0;
    for_each_two([&](size_t p, size_t q) {
      begins_.push_back(pairs);
      pairs += sizes_[p] * sizes_[q];
    });
    covered_.resize(pairs);
  }

  /// How many pairs `row` would add.
  size_t gain(const Combination& row) const {
    size_t gain = 0;
    for_each_pair(row, [&](size_t pair) { gain += covered_[pair] ? 0 : 1; });
    return gain;
  }
  void add(const Combination& row) {
    for_each_pair(row, [&](size_t pair) { covered_[pair] = true; });
  }

 private:
  template <class F>
  void for_each_two(const F& f) const {
    for (size_t p = 0; p < sizes_.size(); ++p) {
      for (size_t q = p + 1; q < sizes_.size(); ++q) f(p, q);
    }
  }
  template <class F>
  void for_each_pair(const Combination& row, const F& f) const {
    auto begin = begins_.begin();
    for_each_two([&](size_t p, size_t q) { f(*begin++ + row[p] * sizes_[q] + row[q]); });
  }

  std::vector<size_t> sizes_;   ///< values of each parameter
  std::vector<size_t> begins_;  ///< by two parameters: the first of their pairs in covered_
  std::vector<bool> covered_;
};

}  // namespace

std::vector<Combination> all_pairs(const std::vector<Combination>& all) {
  std::vector<Combination> selection;
  if (all.empty()) return selection;
  Coverage coverage(all);
  // Gains only shrink, so whoever is first with a gain that is up to date is the best of all.
  using Candidate = std::pair<size_t, size_t>;  // gain when last computed; place from the end
  std::priority_queue<Candidate> candidates;
  for (size_t i = 0; i < all.size(); ++i) {
    candidates.emplace(coverage.gain(all[i]), all.size() - i);
  }
  while (!candidates.empty()) {
    const auto [old_gain, place] = candidates.top();
    candidates.pop();
    const Combination& row = all[all.size() - place];
    const size_t gain = coverage.gain(row);
    if (gain == old_gain && gain != 0) {
      coverage.add(row);
      selection.push_back(row);
    } else if (gain != 0) {
      candidates.emplace(gain, place);
    }
  }
  return selection;
}

}  // namespace farandole::test
