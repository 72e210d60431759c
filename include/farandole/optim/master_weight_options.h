// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace farandole {

/// What a sharded optimizer does with parameters of half types. The same on every rank.
struct MasterWeightOptions {
  /// Keep float32 values of them on the rank that owns them (4 bytes an element of its shards),
  /// which steps are added to; the parameter is that value, rounded to nearest. Without, each step
  /// computes in float32 from the parameter and rounds: what is less than half a unit in the last
  /// place of the parameter is lost then, unless rounding is stochastic.
  bool keep = true;
  /// bfloat16 without master weights: round a step's result up or down with the probability of its
  /// distance from the other one, so that it is right on average and steps of any size count
  /// (Gupta et al. 2015, arXiv 1502.02551, section 3.1).
  ///
  /// The random bits are a function of rounding_seed, the step of the parameter, its index over all
  /// groups and the element's index in its memory. So equal averages give equal bits on any number
  /// of ranks and threads, in every gradient mode and on every CPU, also after a checkpoint.
  bool stochastic_rounding = false;
  uint64_t rounding_seed = 0;
};

}  // namespace farandole
