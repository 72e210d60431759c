// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

/// How fast a training is, and how long it will still take: of steps since it was made, all that
/// lies between them included.
class Progress {
 public:
  /// `step`: the last one that was taken before. `steps`: those of the whole training.
  Progress(int64_t step, int64_t steps) : first_(step), steps_(steps) {}

  /// Of the `items` of each step, until `step`.
  double per_second(int64_t step, int64_t items) const {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
    return static_cast<double>((step - first_) * items) / seconds.count();
  }

  /// After `step`, as 0:12:30; "unknown" before the first one.
  std::string left(int64_t step) const {
    if (step == first_) return "unknown";
    const auto seconds = std::llround(static_cast<double>(steps_ - step) / per_second(step, 1));
    char text[40];
    std::snprintf(text, sizeof(text), "%lld:%02lld:%02lld", seconds / 3600, seconds / 60 % 60,
                  seconds % 60);
    return text;
  }

 private:
  const int64_t first_;
  const int64_t steps_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};
