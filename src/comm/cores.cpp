// SPDX-License-Identifier: Apache-2.0
#include "comm/cores.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>

namespace farandole::comm {

std::string allowed_cores() {
  const std::string field = "Cpus_allowed_list:";
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.compare(0, field.size(), field) != 0) continue;
    const size_t begin = line.find_first_not_of(" \t", field.size());
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

int count_cores(const std::vector<std::string>& sets) {
  std::set<int> cores;
  for (const std::string& set : sets) {
    std::istringstream ranges(set);
    for (std::string range; std::getline(ranges, range, ',');) {
      std::istringstream bounds(range);
      int first = 0;
      if (!(bounds >> first)) continue;
      int last = first;
      if (bounds.get() == '-') bounds >> last;
      for (int core = first; core <= last; ++core) cores.insert(core);
    }
  }
  return std::max(1, static_cast<int>(cores.size()));
}

int cgroup_core_quota() {
  double quota_us = 0;
  double period_us = 0;
  std::ifstream v2("/sys/fs/cgroup/cpu.max");
  if (!(v2 >> quota_us >> period_us)) {  // "max 100000" if there is no quota
    std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") >> quota_us;
    std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period_us;
  }
  if (quota_us <= 0 || period_us <= 0) return std::numeric_limits<int>::max();
  return static_cast<int>(std::ceil(quota_us / period_us));
}

}  // namespace farandole::comm
