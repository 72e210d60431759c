// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

/// Throws std::invalid_argument if the schedule of learning rates, which was saved, has another
/// end. `saved`: all steps of the training that saved the checkpoint; `steps`: of this one.
inline void check_steps(int64_t saved, int64_t steps) {
  if (saved == steps) return;
  throw std::invalid_argument("The checkpoint is of a training of " + std::to_string(saved) +
                              " steps, and this one has " + std::to_string(steps) +
                              ": its learning rates would be wrong. Pass the same --epochs and " +
                              "--batch, or another --output.");
}
