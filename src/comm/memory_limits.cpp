// SPDX-License-Identifier: Apache-2.0
#include "comm/memory_limits.h"

#include <fstream>

namespace farandole::comm {
namespace {

/// The number behind `name` in a file of lines "name number"; nullopt if there is none.
std::optional<uint64_t> field(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    uint64_t number = 0;
    if (word == name && file >> number) return number;
    file.clear();
    file.ignore(1 << 16, '\n');
  }
  return std::nullopt;
}

std::optional<uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;  // "max", or no such file
}

/// The cgroup of this process in the hierarchy of version 2: "/user.slice/job.scope".
std::string own_cgroup() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, 3, "0::") == 0) return line.substr(3);
  }
  return "";
}

uint64_t difference(uint64_t limit, uint64_t used) { return limit > used ? limit - used : 0; }

}  // namespace

std::optional<MemoryLeft> memory_left(const std::string& meminfo, const std::string& cgroup_root,
                                      const std::string& cgroup) {
  std::optional<MemoryLeft> least;
  const auto take = [&](uint64_t bytes, const char* limit) {
    if (!least || bytes < least->bytes) least = MemoryLeft{bytes, limit};
  };
  if (const auto available = field(meminfo, "MemAvailable:")) {
    take((*available + field(meminfo, "SwapFree:").value_or(0)) * 1024, "the host");
  }
  for (std::string folder = cgroup == "/" ? "" : cgroup;;
       folder.resize(folder.rfind('/'))) {  // up to the root that this process sees
    const std::string path = cgroup_root + folder + "/memory.";
    const auto limit = number_in(path + "max");
    const auto used = number_in(path + "current");
    if (limit && used) {
      const uint64_t cache = field(path + "stat", "inactive_file").value_or(0) +
                             field(path + "stat", "active_file").value_or(0);
      take(difference(*limit, difference(*used, cache)), "its cgroup (memory.max)");
    }
    if (folder.rfind('/') == std::string::npos) break;
  }
  return least;
}

std::optional<MemoryLeft> memory_left() {
  return memory_left("/proc/meminfo", "/sys/fs/cgroup", own_cgroup());
}

}  // namespace farandole::comm
