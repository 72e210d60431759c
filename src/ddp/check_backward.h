// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ddp/backward_report.h"

namespace farandole {

/// This rank and its model, for the texts of errors.
struct BackwardContext {
  std::string group;
  int rank;
  uint64_t backward;
  bool reduced;  ///< every rank was complete: no gradient was missing or late
  const std::vector<std::string>& parameters;  ///< their names
};

/// Throws BackwardError if the backward passes of the ranks do not belong together. Every rank has
/// the same reports, so all throw or none. A rank that abandoned its own backward does not throw.
void check_backward(const std::vector<BackwardReport>& reports, const BackwardContext& context);

/// "backward #3: gradients have an Inf or NaN, the first of 'head.weight' (bucket 0) on rank 1.":
/// the first of each rank, of which at least one has one.
std::string nonfinite_gradients(const std::vector<BackwardReport>& reports,
                                const BackwardContext& context,
                                const std::function<size_t(size_t)>& bucket_of);

/// Throws the BackwardError for a bucket (with `parameter` among others) that `ranks` have skipped
/// and other ranks of `world_size` have not.
[[noreturn]] void throw_skipped(const std::vector<int>& ranks, const std::string& parameter,
                                const BackwardContext& context, size_t world_size);

/// Throws the BackwardError for `rank`, whose buckets differ from those of rank 0.
[[noreturn]] void throw_other_plan(size_t rank, const std::string& group);

/// Throws that as a BackwardError.
[[noreturn]] void throw_nonfinite(const std::string& text,
                                  const std::vector<BackwardReport>& reports);

}  // namespace farandole
