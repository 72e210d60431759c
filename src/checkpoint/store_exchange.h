// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "checkpoint/save_job.h"

namespace farandole::checkpoint {

/// Exchanges texts through a store, without a collective: for threads that run beside the training.
/// Ranks call the same functions in the same order. Threads: one at a time.
class StoreExchange {
 public:
  StoreExchange(c10::intrusive_ptr<c10d::Store> store, std::string prefix, int rank, int world_size,
                std::chrono::milliseconds timeout, std::function<void()> check_alive)
      : store_(std::move(store)),
        prefix_(std::move(prefix)),
        rank_(rank),
        world_size_(world_size),
        timeout_(timeout),
        check_alive_(std::move(check_alive)) {}

  /// As Exchange. Throws PeerFailure when `check_alive` does so while a rank is waited for,
  /// CheckpointError when it does not come within the timeout, and what the store throws.
  std::vector<std::string> all_gather(const std::string& own);
  /// The end: rank 0, whose process may have the store, waits until the others have read all, and
  /// removes what was exchanged. Does not throw.
  void leave() noexcept;

 private:
  std::string await(const std::string& key, int rank,
                    std::chrono::steady_clock::time_point deadline, bool heeds_deaths);
  void await_end(const std::string& key, int rank, std::chrono::steady_clock::time_point deadline);
  std::string key(int round, int rank) const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string prefix_;
  const int rank_;
  const int world_size_;
  const std::chrono::milliseconds timeout_;
  const std::function<void()> check_alive_;
  int rounds_ = 0;
  bool is_one_missing_ = false;
};

}  // namespace farandole::checkpoint
