// SPDX-License-Identifier: Apache-2.0
#include "process_group/slurm.h"

#include <cstdio>
#include <sstream>

namespace farandole {

std::string first_host_of(const std::string& node_list) {
  std::string host;
  for (size_t i = 0; i < node_list.size() && node_list[i] != ','; ++i) {
    if (node_list[i] != '[') {
      host += node_list[i];
      continue;
    }
    const size_t end = node_list.find_first_of("-,]", i);
    host += node_list.substr(i + 1, end - i - 1);
    i = node_list.find(']', i);
    if (i == std::string::npos) break;
  }
  return host;
}

int tasks_on_node(const std::string& tasks_per_node, int node) {
  std::istringstream parts(tasks_per_node);
  for (std::string part; std::getline(parts, part, ',');) {
    int tasks = 0;
    int nodes = 1;
    if (std::sscanf(part.c_str(), "%d(x%d)", &tasks, &nodes) < 1) return 0;
    if (node < nodes) return tasks;
    node -= nodes;
  }
  return 0;
}

}  // namespace farandole
