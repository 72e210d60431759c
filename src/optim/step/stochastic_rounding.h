// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "farandole/export.h"

namespace farandole {

/// Which random bits a parameter gets in a step.
struct RoundingKey {
  uint32_t first;
  uint32_t second;
};

/// Stochastic rounding of a piece of a bfloat16 parameter without master weights.
struct StochasticRounding {
  RoundingKey key;
  uint64_t first_element;  ///< of the piece, in the parameter
};

/// `step`: of the parameter. `parameter`: its index over all groups. Distinct arguments have
/// distinct keys, but for one chance in 2^64.
FARANDOLE_API RoundingKey rounding_key(uint64_t seed, int64_t step, size_t parameter);

/// halves[i] = bfloat16 of values[i], rounded up or down with the probability of the distance from
/// the other one (Gupta et al. 2015, arXiv 1502.02551, section 3.1): what has a bfloat16 stays, and
/// the mean is right to 2^-16 of the distance between two bfloat16, whose share 16 random bits
/// choose.
///
/// NaN and Inf stay, and what is beyond the largest bfloat16 is rounded to nearest: so a finite
/// value becomes Inf only where it would in that way too.
///
/// The bits belong to element `first_element + i` of the parameter, wherever a call begins, and are
/// the upper half of
///
///   mix(mix(lower 32 bits of the index + key.first) ^ key.second ^ mix(upper 32 bits))
///
/// where mix is the finalizer of MurmurHash3 (Appleby, public domain), a bijection of 32 bits each
/// of which depends on all: counted through it, indices give each number once in 2^32. Integer
/// arithmetic alone, the same on every CPU. Any thread.
FARANDOLE_API void round_stochastically(const float* values, uint16_t* halves, size_t count,
                                        RoundingKey key, uint64_t first_element);

}  // namespace farandole
