// SPDX-License-Identifier: Apache-2.0
#include "comm/sealed_store.h"

#include <algorithm>
#include <thread>

#include "comm/sha256.h"
#include "farandole/error.h"
#include "log.h"

namespace farandole::comm {
namespace {

using std::chrono::milliseconds;

/// Begins a sealed record; 64 digits and a space follow, then the value.
constexpr std::string_view kSeal = "farandole-sealed ";
constexpr size_t kSealBytes = kSeal.size() + 2 * sizeof(Digest) + 1;
/// A rank that restarts writes its own record in the place of an earlier one by then.
constexpr milliseconds kPatience{20000};
constexpr milliseconds kPause{20};

}  // namespace

SealedStore::~SealedStore() = default;

std::string SealedStore::seal_of(const std::string& key, const std::string& value) const {
  return std::string(kSeal) + hex_of(code_of(secret_, "store", {key, value})) + " ";
}

void SealedStore::set(const std::string& key, const std::string& value) {
  below_.set(key, secret_.empty() ? value : seal_of(key, value) + value);
}

std::optional<std::string> SealedStore::get(const std::string& key, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (true) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    const bool is_there = below_.get(key, std::max(left, milliseconds(0))).has_value();
    if (auto value = is_there ? try_get(key) : std::nullopt) return value;
    if (Clock::now() >= deadline) return std::nullopt;
    std::this_thread::sleep_for(std::min(kPause, std::max(left, milliseconds(1))));
  }
}

std::optional<std::string> SealedStore::try_get(const std::string& key) {
  auto record = below_.try_get(key);
  if (!record) return record;
  const bool is_sealed = record->compare(0, kSeal.size(), kSeal) == 0;
  if (secret_.empty() && !is_sealed) return record;
  if (secret_.empty()) {
    throw MismatchError("job-secret-missing",
                        "the ranks' store holds records that are sealed with a job secret, but "
                        "this rank has none.",
                        "FARANDOLE_JOB_SECRET is set for other ranks, but not for this one.",
                        "set it to the same value for all ranks, or for none.");
  }
  std::string value = record->substr(std::min(kSealBytes, record->size()));
  const std::string wanted = seal_of(key, value);
  unsigned difference = record->size() < kSealBytes ? 1 : 0;
  for (size_t i = 0; i < wanted.size() && i < record->size(); ++i) {
    difference |= static_cast<unsigned char>(wanted[i] ^ (*record)[i]);
  }
  if (difference == 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    foreign_.erase(key);
    return value;
  }
  note_foreign(key);
  return std::nullopt;
}

/// Throws if it has been so for some time.
void SealedStore::note_foreign(const std::string& key) {
  const auto now = Clock::now();
  bool is_first = false;
  bool is_old = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_first = foreign_.empty();
    is_old = now - foreign_.emplace(key, now).first->second >= kPatience;
  }
  if (is_first) {
    log(LogLevel::kWarning, "the record '" + key +
                                "' in the ranks' store is not sealed with this job's secret and is "
                                "ignored; other such records will be ignored too.");
  }
  if (!is_old) return;
  throw MismatchError(
      "job-secret-differs",
      "the record '" + key + "' in the ranks' store is not sealed with this rank's job secret.",
      "another rank has a different FARANDOLE_JOB_SECRET or none, or another program writes to the "
      "store.",
      "set FARANDOLE_JOB_SECRET to the same value for all ranks, and use a separate store for each "
      "job.");
}

}  // namespace farandole::comm
