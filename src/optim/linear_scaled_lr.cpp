// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/linear_scaled_lr.h"

#include <string>

#include "farandole/error.h"

namespace farandole {

double linear_scaled_lr(double base_lr, int64_t global_batch_size, int64_t reference_batch_size) {
  if (global_batch_size <= 0 || reference_batch_size <= 0) {
    throw InvalidArgument("linear-scaling",
                          "linear_scaled_lr() got global_batch_size " +
                              std::to_string(global_batch_size) + " and reference_batch_size " +
                              std::to_string(reference_batch_size) + ".",
                          "both are numbers of samples, at least 1.",
                          "pass the samples of one step on all ranks, and those that base_lr was "
                          "tuned for.");
  }
  return base_lr * static_cast<double>(global_batch_size) /
         static_cast<double>(reference_batch_size);
}

}  // namespace farandole
