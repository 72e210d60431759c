// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/store_exchange.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "farandole/error.h"

namespace farandole::checkpoint {

std::string StoreExchange::key(int round, int rank) const {
  return prefix_ + std::to_string(round) + "/" + std::to_string(rank);
}

std::vector<std::string> StoreExchange::all_gather(const std::string& own) {
  const int round = rounds_++;
  store_->set(key(round, rank_), "=" + own);  // stores take no empty values
  std::vector<std::string> all;
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  for (int rank = 0; rank < world_size_; ++rank) {
    all.push_back(await(key(round, rank), rank, deadline, true));
  }
  return all;
}

/// Polls: a store that waits cannot be asked by other threads of the process meanwhile.
std::string StoreExchange::await(const std::string& key, int rank,
                                 std::chrono::steady_clock::time_point deadline,
                                 bool heeds_deaths) {
  auto pause = std::chrono::milliseconds(1);
  while (!store_->check({key})) {
    try {
      if (heeds_deaths) check_alive_();
    } catch (const PeerFailure&) {
      if (store_->check({key})) break;  // it has reported, and ended since
      is_one_missing_ = true;
      throw;
    } catch (const Error&) {  // the program has aborted the group, and each rank still writes
    }
    if (std::chrono::steady_clock::now() > deadline) {
      is_one_missing_ = true;
      throw CheckpointError(
          "checkpoint-late",
          "an asynchronous save waited too long for rank " + std::to_string(rank) + ".",
          "it did not report within the group's timeout that its file is written.",
          "look whether that rank is alive and its file system answers; the checkpoints before are "
          "unchanged.",
          {{rank}, ""});
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(20));
  }
  return store_->get_to_str(key).substr(1);
}

/// Of a rank that has read all, or is dead. The death of another one ends nothing, but only the
/// first that has died is named: then others get the time to read, and no more.
void StoreExchange::await_end(const std::string& key, int rank,
                              std::chrono::steady_clock::time_point deadline) {
  constexpr std::chrono::seconds kToRead{1};
  try {
    await(key, rank, deadline, true);
  } catch (const PeerFailure& met) {
    if (std::count(met.ranks().begin(), met.ranks().end(), rank) > 0) return;
    await(key, rank, std::min(deadline, std::chrono::steady_clock::now() + kToRead), false);
  }
}

void StoreExchange::leave() noexcept {
  constexpr std::chrono::milliseconds kLongest = std::chrono::seconds(30);
  const int last = rounds_;
  try {
    if (rank_ != 0) return store_->set(key(last, rank_), "=");
    if (is_one_missing_) return;  // it would be waited for again
    const auto deadline = std::chrono::steady_clock::now() + std::min(kLongest, timeout_);
    for (int rank = 1; rank < world_size_; ++rank) await_end(key(last, rank), rank, deadline);
    for (int round = 0; round <= last; ++round) {
      for (int rank = 0; rank < world_size_; ++rank) store_->deleteKey(key(round, rank));
    }
  } catch (const std::exception&) {  // a rank or the store is gone; all is saved or told already
  }
}

}  // namespace farandole::checkpoint
