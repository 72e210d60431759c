// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_device/graph.h"

#include <utility>

#include "support/simulated_device/device.h"
#include "support/simulated_device/errors.h"
#include "support/simulated_device/memory.h"
#include "support/simulated_device/stream.h"

namespace farandole::sim {

Graph::Graph(std::vector<Node> nodes, std::vector<void*> memory)
    : nodes_(std::move(nodes)), memory_(std::move(memory)) {
  for (const Node& each : nodes_) {
    Stream*& own = streams_[each.stream];
    if (own == nullptr) own = &new_stream(each.stream->device());
  }
}

Graph::~Graph() {
  for (void* each : memory_) let_go_of_graph_memory(each);
}

void Graph::replay(Stream& on) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (on.capture_status() != CaptureStatus::kNone) {
    throw CaptureError(on.name() +
                       " cannot replay a graph.\nwhy: it is captured, and simulated graphs hold no "
                       "others.\nfix: replay it after the capture.");
  }
  std::vector<Event> before{on.tail()};
  for (const auto& [captured, own] : streams_) before.push_back(own->tail());
  for (const auto& [captured, own] : streams_) {
    for (const Event& each : before) own->follow(each);
  }
  std::vector<Event> ends;
  for (const Node& node : nodes_) {
    Stream& stream = *streams_.at(node.stream);
    for (const size_t each : node.after) stream.follow(ends[each]);
    stream.launch(node.kernel);
    ends.push_back(stream.tail());
  }
  for (const auto& [captured, own] : streams_) on.follow(own->tail());
}

}  // namespace farandole::sim
