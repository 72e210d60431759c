// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ddp/round_note.h"

namespace farandole {

/// What a verdict's text tells of this rank and its model.
struct RoundContext {
  std::string group;
  int rank;
  uint64_t backward;
  bool reduced;  ///< every rank was complete: no gradient was missing or late
  const std::vector<std::string>& parameters;  ///< their names
};

/// Throws BackwardError if the notes of all ranks, which every rank has alike, say that their
/// backward passes do not belong together. A rank that abandoned its own does not throw: it knows.
void check_round(const std::vector<RoundNote>& notes, const RoundContext& context);

/// "backward #3: gradients have an Inf or NaN, the first of 'head.weight' (bucket 0) on rank 1.":
/// the first of each rank, of which at least one has one.
std::string nonfinite_gradients(const std::vector<RoundNote>& notes, const RoundContext& context,
                                const std::function<size_t(size_t)>& bucket_of);

/// Throws the BackwardError of ranks that have left out a bucket, of `parameter` among others, and
/// some of `world_size` that have not.
[[noreturn]] void throw_skipped(const std::vector<int>& ranks, const std::string& parameter,
                                const RoundContext& context, size_t world_size);

/// Throws the BackwardError of `rank`, whose buckets are others than those of rank 0.
[[noreturn]] void throw_other_plan(size_t rank, const std::string& group);

/// Throws that as a BackwardError.
[[noreturn]] void throw_nonfinite(const std::string& text, const std::vector<RoundNote>& notes);

}  // namespace farandole
