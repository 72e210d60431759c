// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "farandole/comm/store.h"
#include "farandole/export.h"

namespace farandole::comm {

/// A Store whose records are sealed with the job's secret, over another one in which strangers may
/// write as well: their records are as if they were not there, and one WARNING line tells of the
/// first. What a stranger replays was written under the same key, so keys or values that matter
/// hold a session or a nonce. Without a secret records are as they are.
///
/// Threads: those of the store below.
class FARANDOLE_API SealedStore final : public Store {
 public:
  SealedStore(Store& below, std::string secret) : below_(below), secret_(std::move(secret)) {}
  ~SealedStore() override;

  void set(const std::string& key, const std::string& value) override;
  /// Throws MismatchError if `key` has had a record with another seal for some time, or one with a
  /// seal in a job without a secret: then ranks have been given different secrets.
  std::optional<std::string> get(const std::string& key,
                                 std::chrono::milliseconds timeout) override;
  /// Throws as get().
  std::optional<std::string> try_get(const std::string& key) override;

 private:
  using Clock = std::chrono::steady_clock;

  std::string seal_of(const std::string& key, const std::string& value) const;
  void note_foreign(const std::string& key);

  Store& below_;
  const std::string secret_;
  std::mutex mutex_;
  std::map<std::string, Clock::time_point> foreign_;  ///< guarded by mutex_; since when by key
};

}  // namespace farandole::comm
