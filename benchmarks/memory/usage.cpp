// SPDX-License-Identifier: Apache-2.0
#include "memory/usage.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace farandole::benchmark {
namespace {

/// The segments' name in /proc/self/smaps, as segment.cpp gives it to memfd_create.
constexpr const char* kSegment = "/memfd:farandole";

std::ifstream open(const char* path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(std::string("cannot read ") + path);
  return file;
}

/// "Pss:   12 kB": adds the bytes to `sum` if the line is about `key`. True if it is.
bool add(const std::string& line, const std::string& key, int64_t* sum) {
  if (line.compare(0, key.size(), key) != 0) return false;
  std::istringstream words(line.substr(key.size()));
  int64_t number = 0;
  std::string unit;
  words >> number >> unit;
  *sum += unit == "kB" ? number * 1024 : number;
  return true;
}

void add_mappings(Usage* usage) {
  std::ifstream file = open("/proc/self/smaps");
  bool ours = false;
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos || line.find('-') < colon) {  // "7f00-7f01 rw-s ... name"
      ours = line.find(kSegment) != std::string::npos;
      usage->mappings += ours;
    } else if (ours) {
      add(line, "Size:", &usage->virtual_bytes) || add(line, "Rss:", &usage->resident_bytes) ||
          add(line, "Pss:", &usage->shared_out_bytes);
    }
  }
}

}  // namespace

Usage own_usage() {
  Usage usage;
  add_mappings(&usage);
  std::ifstream status = open("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    add(line, "VmPTE:", &usage.page_table_bytes) || add(line, "Threads:", &usage.threads);
  }
  const std::filesystem::directory_iterator files("/proc/self/fd");
  usage.descriptors = std::distance(begin(files), end(files)) - 1;  // one is this look itself
  return usage;
}

std::string to_json(const Usage& usage) {
  std::ostringstream line;
  line << "{\"virtual_bytes\": " << usage.virtual_bytes
       << ", \"resident_bytes\": " << usage.resident_bytes
       << ", \"shared_out_bytes\": " << usage.shared_out_bytes
       << ", \"mappings\": " << usage.mappings
       << ", \"page_table_bytes\": " << usage.page_table_bytes
       << ", \"descriptors\": " << usage.descriptors << ", \"threads\": " << usage.threads << "}";
  return line.str();
}

}  // namespace farandole::benchmark
