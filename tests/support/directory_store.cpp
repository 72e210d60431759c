// SPDX-License-Identifier: Apache-2.0
#include "support/directory_store.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace farandole::test {

void DirectoryStore::set(const std::string& key, const std::string& value) {
  const std::string path = path_of(key);
  std::ostringstream partial;
  partial << path << ".partial." << ::getpid() << "." << std::this_thread::get_id();
  std::ofstream(partial.str()) << value;
  std::filesystem::rename(partial.str(), path);
}

std::optional<std::string> DirectoryStore::get(const std::string& key,
                                               std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    std::ifstream file(path_of(key));
    if (file) {
      std::ostringstream text;
      text << file.rdbuf();
      return text.str();
    }
    if (std::chrono::steady_clock::now() > deadline) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::string DirectoryStore::path_of(const std::string& key) const {
  std::string name = key;
  std::replace(name.begin(), name.end(), '/', '_');
  return directory_ + "/" + name;
}

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (std::filesystem::temp_directory_path() / "farandole-XXXXXX").string();
  path_ = ::mkdtemp(pattern.data());
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace farandole::test
