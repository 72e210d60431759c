// SPDX-License-Identifier: Apache-2.0
#include "support/directory_store.h"

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

namespace farandole::benchmark {

void DirectoryStore::set(const std::string& key, const std::string& value) {
  const auto unfinished = folder_ / ("unfinished." + std::to_string(rank_));
  std::ofstream(unfinished, std::ios::binary) << value;
  std::filesystem::rename(unfinished, file_of(key));
}

std::optional<std::string> DirectoryStore::get(const std::string& key,
                                               std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!std::filesystem::exists(file_of(key))) {
    if (std::chrono::steady_clock::now() >= deadline) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::ostringstream value;
  value << std::ifstream(file_of(key), std::ios::binary).rdbuf();
  return value.str();
}

std::filesystem::path DirectoryStore::file_of(std::string key) const {
  for (char& letter : key) {
    if (letter == '/') letter = '|';
  }
  return folder_ / ("key." + key);
}

}  // namespace farandole::benchmark
