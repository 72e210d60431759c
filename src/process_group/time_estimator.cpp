// SPDX-License-Identifier: Apache-2.0
#include "process_group/time_estimator.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

namespace farandole {
namespace {

/// Microseconds of `call`: the least of `rounds`. What another process took of the cores meanwhile
/// is not the group's own.
template <class Call>
double least_us(int rounds, const Call& call) {
  double least = std::numeric_limits<double>::max();
  for (int round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    least = std::min(least, time.count());
  }
  return least;
}

}  // namespace

void TimeEstimator::measure(comm::Communicator& communicator,
                            const comm::CollectiveOptions& options) {
  constexpr size_t kCount = size_t{1} << 20;  // float32
  constexpr int kBarriers = 20;  // a run of them: the rank that comes last to one hardly waits
  const auto barriers = [&] {
    for (int i = 0; i < kBarriers; ++i) communicator.barrier(options);
  };
  const double latency = least_us(5, barriers) / kBarriers;
  std::vector<float> data(kCount);
  const double reduction = least_us(15, [&] {
    communicator.all_reduce(data.data(), data.data(), kCount, comm::DataType::kFloat32,
                            comm::ReduceOp::kSum, options);
  });
  const double copied = 3.0 * sizeof(float) * kCount;
  const std::lock_guard<std::mutex> lock(mutex_);
  latency_us_ = latency;
  bytes_per_us_ = copied / std::max(reduction - latency, reduction / 2);
  measured_ = true;
}

void TimeEstimator::start() {
  const std::lock_guard<std::mutex> lock(mutex_);
  total_us_ = 0;
  active_ = true;
}

bool TimeEstimator::count(const Cost& cost) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!active_) return false;
  total_us_ += cost.calls * latency_us_ + cost.copied / bytes_per_us_;
  return true;
}

std::optional<float> TimeEstimator::end() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!active_) return std::nullopt;
  active_ = false;
  return static_cast<float>(total_us_);
}

}  // namespace farandole
