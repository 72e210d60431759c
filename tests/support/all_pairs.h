// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace farandole::test {

/// One row of a test matrix: the index of the value that each parameter has.
using Combination = std::vector<size_t>;

/// A small selection of `all` (the combinations that make sense, all of one length) in which every
/// pair of values of two parameters occurs that occurs in `all` at all.
///
/// Greedy: takes the combination with most pairs that are not yet covered, the first of equals,
/// until none is left. The same `all` gives the same selection.
std::vector<Combination> all_pairs(const std::vector<Combination>& all);

}  // namespace farandole::test
