// SPDX-License-Identifier: Apache-2.0
#include "support/all_pairs.h"

#include <algorithm>
#include <vector>

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

  /// How many pairs a row has.
  size_t most() const { return begins_.size(); }
  /// How many pairs `row` would add.
  size_t gain(const Combination& row) const {
    size_t gain = 0;
    for_each_pair(row, [&](size_t pair) { gain += covered_[pair] == 0 ? 1 : 0; });
    return gain;
  }
  void add(const Combination& row) {
    for_each_pair(row, [&](size_t pair) { covered_[pair] = 1; });
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
  std::vector<char> covered_;   ///< 1 if the pair has occurred
};

}  // namespace

std::vector<Combination> all_pairs(const std::vector<Combination>& all) {
  std::vector<Combination> selection;
  if (all.empty()) return selection;
  Coverage coverage(all);
  // The best row is taken first. Gains only shrink, so a row whose gain has shrunk waits for its
  // turn among those of the smaller gain.
  std::vector<std::vector<size_t>> rows_by_gain(coverage.most() + 1);
  for (size_t i = 0; i < all.size(); ++i) rows_by_gain[coverage.gain(all[i])].push_back(i);
  for (size_t most = coverage.most(); most > 0; --most) {
    std::vector<size_t>& rows = rows_by_gain[most];
    std::sort(rows.begin(), rows.end());
    for (const size_t row : rows) {
      const size_t gain = coverage.gain(all[row]);
      if (gain == most) {
        coverage.add(all[row]);
        selection.push_back(all[row]);
      } else {
        rows_by_gain[gain].push_back(row);
      }
    }
  }
  return selection;
}

}  // namespace farandole::test
