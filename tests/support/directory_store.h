// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "farandole/comm/store.h"

namespace farandole::test {

/// A Store for processes of one host: one file per key, made whole by rename(2).
class DirectoryStore : public comm::Store {
 public:
  explicit DirectoryStore(std::string directory) : directory_(std::move(directory)) {}
  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key,
                                 std::chrono::milliseconds timeout) override;

 private:
  std::string path_of(const std::string& key) const;
  std::string directory_;
};

/// A folder that goes with its owner.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace farandole::test
