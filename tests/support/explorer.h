// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

namespace farandole::test {

/// What exploring all interleavings of a small model found.
struct Exploration {
  size_t states = 0;
  std::string violation;  ///< empty: none
};

/// Visits every state that `Model` can reach, each step of each rank in every order (depth first).
///
/// A Model has State (with operator<), initial(), ranks(), step(state, rank, *violation), which
/// advances one rank by one atomic step and returns false where the rank cannot move, and
/// finished(state). A state in which nobody can move and that is not finished is a deadlock.
template <class Model>
Exploration explore(const Model& model) {
  using State = typename Model::State;
  std::set<State> seen{model.initial()};
  std::vector<State> open{model.initial()};
  Exploration result;
  while (!open.empty() && result.violation.empty()) {
    const State state = open.back();
    open.pop_back();
    bool moved = false;
    for (int rank = 0; rank < model.ranks(); ++rank) {
      State next = state;
      if (!model.step(&next, rank, &result.violation)) continue;
      moved = true;
      if (seen.insert(next).second) open.push_back(next);
    }
    if (!moved && !model.finished(state) && result.violation.empty()) {
      result.violation = "deadlock: nobody can move";
    }
  }
  result.states = seen.size();
  return result;
}

}  // namespace farandole::test
