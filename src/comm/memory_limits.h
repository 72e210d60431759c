// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "farandole/export.h"

namespace farandole::comm {

/// The memory that this process may still allocate, and the limit that decides.
struct MemoryLeft {
  uint64_t bytes;
  std::string limit;  ///< "the host", or "its cgroup (memory.max)"
};

/// The minimum over the host and the cgroups of this process, including caches that they can drop;
/// nullopt if the kernel does not report it. Takes 0.1 ms.
FARANDOLE_API std::optional<MemoryLeft> memory_left();

/// memory_left() for given files in the kernel's formats: /proc/meminfo, and for each cgroup, from
/// the process's own upwards, a folder with memory.max, memory.current and memory.stat.
FARANDOLE_API std::optional<MemoryLeft> memory_left(const std::string& meminfo,
                                                    const std::string& cgroup_root,
                                                    const std::string& cgroup);

}  // namespace farandole::comm
