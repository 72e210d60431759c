// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "farandole/comm/store.h"

namespace farandole::benchmark {

/// One file for each key in a folder that the ranks share. A new file gets its name once it is
/// complete, so that a reader never sees half a value.
class DirectoryStore : public comm::Store {
 public:
  DirectoryStore(std::filesystem::path folder, int rank)
      : folder_(std::move(folder)), rank_(rank) {}

  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key,
                                 std::chrono::milliseconds timeout) override;

 private:
  std::filesystem::path file_of(std::string key) const;

  std::filesystem::path folder_;
  int rank_;
};

}  // namespace farandole::benchmark
