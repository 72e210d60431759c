// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <mutex>
#include <optional>

#include "farandole/comm/communicator.h"

namespace farandole {

/// What a call asks of the machine, as the cost model below counts it.
struct Cost {
  double calls = 1;   ///< collectives or transfers, each of which meets its peers once
  double copied = 0;  ///< bytes that the busiest rank copies or reduces in all
};

/// How long the collectives of one group would take, without running them.
///
/// Model: time = calls * latency + copied / bandwidth. In shared memory every byte of an input is
/// copied into a slot, every byte of an output out of one, and a reduction reads its share of all
/// slots in between; so all_reduce of S bytes copies 3 S, all_gather of S bytes among n ranks
/// (1 + n) S. Latency and bandwidth are measured in the group itself, once, by measure(): the
/// shortest of 5 runs of 20 barriers, and of 15 all_reduces of 4 MiB, during which all ranks copy
/// at once as they would in earnest. What a rank waits for late peers, what other processes take,
/// and what strided tensors cost, is not in the model.
///
/// Threads: any; measure() is a collective.
class TimeEstimator {
 public:
  bool measured() const { return measured_.load(); }
  void measure(comm::Communicator& communicator, const comm::CollectiveOptions& options);

  /// From now on calls are to be add()ed instead of run. What was added before is forgotten.
  void start();
  /// Whether calls are to be estimated; then `cost` has been added.
  bool add(const Cost& cost) { return active_.load(std::memory_order_relaxed) && count(cost); }
  /// Ends what start() began, and returns its microseconds; nothing if nothing was begun.
  std::optional<float> end();

 private:
  bool count(const Cost& cost);

  std::atomic<bool> measured_{false};
  std::atomic<bool> active_{false};  // written under mutex_
  std::mutex mutex_;
  double latency_us_ = 0;    // guarded by mutex_
  double bytes_per_us_ = 0;  // guarded by mutex_
  double total_us_ = 0;      // guarded by mutex_
};

}  // namespace farandole
