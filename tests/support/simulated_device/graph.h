// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "support/simulated_device/kernel.h"

namespace farandole::sim {

class Stream;

using Nodes = std::vector<size_t>;  ///< numbers of nodes

/// A kernel of a graph.
struct Node {
  Stream* stream;  ///< on which it was captured
  Kernel kernel;
  Nodes after;    ///< it runs after these
  bool is_aside;  ///< nothing needs to wait for it
};

/// What a capture has recorded. Each replay launches all of it: a kernel runs after those that it
/// came after when it was captured, and after what the stream of the replay was given before; that
/// stream goes on after all of it. Replays of one graph run one after the other. The order that
/// streams had otherwise, before and after the capture, has no meaning for them.
///
/// Memory that was allocated on captured streams is the graph's until it ends, so that each replay
/// may use it; each allocation and release in the capture is a write.
///
/// Threads: any.
class Graph {
 public:
  Graph(std::vector<Node> nodes, std::vector<void*> memory);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Throws RaceError; the rest of the graph is not launched then. Throws CaptureError if `on` is
  /// captured.
  void replay(Stream& on);

 private:
  std::mutex mutex_;  ///< held by replays
  const std::vector<Node> nodes_;
  const std::vector<void*> memory_;
  std::map<Stream*, Stream*> streams_;  ///< where kernels of a captured stream run
};

}  // namespace farandole::sim
