// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

/// Counts evaluations since the best one. Ranks that pass equal metrics decide alike.
struct EarlyStopping {
  int64_t patience;  ///< evaluations in a row that may be no better than the best; 0: any number
  double best = -std::numeric_limits<double>::infinity();
  int64_t since_best = 0;

  /// After an evaluation; more is better.
  bool should_stop(double metric) {
    since_best = metric > best ? 0 : since_best + 1;
    best = std::max(best, metric);
    return patience > 0 && since_best >= patience;
  }
};
