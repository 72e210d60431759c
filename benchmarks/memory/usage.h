// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace farandole::benchmark {

/// What the kernel says of this process.
struct Usage {
  int64_t virtual_bytes = 0;     ///< of mappings of Farandole's segments
  int64_t resident_bytes = 0;    ///< of them, pages that this process has touched (Rss)
  int64_t shared_out_bytes = 0;  ///< of them, each page divided by the processes that have it (Pss)
  int64_t mappings = 0;          ///< of Farandole's segments
  int64_t page_table_bytes = 0;  ///< of the whole process (VmPTE)
  int64_t descriptors = 0;       ///< open files of the whole process
  int64_t threads = 0;           ///< of the whole process
};

/// From /proc/self. Throws std::runtime_error where a file there cannot be read.
Usage own_usage();

/// As one line of JSON, with the names of the members.
std::string to_json(const Usage& usage);

}  // namespace farandole::benchmark
