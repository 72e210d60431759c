// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "farandole/export.h"

namespace farandole::comm {

/// Memory that this process may still take, and which limit says so.
struct MemoryLeft {
  uint64_t bytes;
  std::string limit;  ///< "the host", or "its cgroup (memory.max)"
};

/// The least of what the host and the cgroups of this process have left, caches that they can drop
/// included; nullopt where the kernel does not tell. 0.1 ms.
FARANDOLE_API std::optional<MemoryLeft> memory_left();

/// As memory_left(), of files as the kernel writes them: /proc/meminfo, and for each cgroup from
/// the process's own up a folder with memory.max, memory.current and memory.stat.
FARANDOLE_API std::optional<MemoryLeft> memory_left(const std::string& meminfo,
                                                    const std::string& cgroup_root,
                                                    const std::string& cgroup);

}  // namespace farandole::comm
