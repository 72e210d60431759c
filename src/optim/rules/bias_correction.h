// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace farandole {

/// 1 - beta^step, of Adam and LAMB, in float64. Keeps what this thread has asked for last: the
/// blocks of a step ask for the same two. Any thread.
double bias_correction(double beta, int64_t step);

}  // namespace farandole
