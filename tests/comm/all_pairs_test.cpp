// SPDX-License-Identifier: Apache-2.0
#include "support/all_pairs.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

namespace farandole::test {
namespace {

/// Two parameters and a value of each.
using Pair = std::array<size_t, 4>;

std::set<Pair> pairs_of(const std::vector<Combination>& rows) {
  std::set<Pair> pairs;
  for (const Combination& row : rows) {
    for (size_t p = 0; p < row.size(); ++p) {
      for (size_t q = p + 1; q < row.size(); ++q) pairs.insert({p, q, row[p], row[q]});
    }
  }
  return pairs;
}

/// The cross product of parameters with so many values each.
std::vector<Combination> product_of(const std::vector<size_t>& sizes) {
  std::vector<Combination> rows{{}};
  for (const size_t size : sizes) {
    std::vector<Combination> longer;
    for (const Combination& row : rows) {
      for (size_t value = 0; value < size; ++value) {
        longer.push_back(row);
        longer.back().push_back(value);
      }
    }
    rows = std::move(longer);
  }
  return rows;
}

TEST(AllPairs, CoversEveryPairWithFewOfTheCombinations) {
  for (const auto& sizes :
       {std::vector<size_t>{3, 4}, {2, 2, 2, 2, 2, 2}, {10, 8, 14, 3, 2}, {1, 5, 1, 7}}) {
    const auto all = product_of(sizes);
    const auto selection = all_pairs(all);
    EXPECT_EQ(pairs_of(selection), pairs_of(all));
    // No selection is smaller than the two largest parameters; greed comes close to it.
    std::vector<size_t> sorted = sizes;
    std::sort(sorted.rbegin(), sorted.rend());
    EXPECT_GE(selection.size(), sorted[0] * sorted[1]);
    EXPECT_LE(selection.size(), sorted[0] * sorted[1] * 2);
  }
}

TEST(AllPairs, TakesOnlyCombinationsThatMakeSense) {
  std::vector<Combination> all;
  for (const Combination& row : product_of({4, 5, 6})) {
    if (row[0] != row[1] && row[1] + row[2] != 3) all.push_back(row);
  }
  const auto selection = all_pairs(all);
  EXPECT_EQ(pairs_of(selection), pairs_of(all));
  const std::set<Combination> known(all.begin(), all.end());
  for (const Combination& row : selection) EXPECT_EQ(known.count(row), 1U);
}

TEST(AllPairs, SelectsTheSameEveryTimeAndNothingFromNothing) {
  const auto all = product_of({5, 4, 3, 2});
  EXPECT_EQ(all_pairs(all), all_pairs(all));
  EXPECT_TRUE(all_pairs({}).empty());
  EXPECT_EQ(all_pairs({{3}, {1}}).size(), 0U);  // one parameter has no pairs
}

}  // namespace
}  // namespace farandole::test
