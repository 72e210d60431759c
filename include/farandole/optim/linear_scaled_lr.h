// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "farandole/export.h"

namespace farandole {

/// The linear scaling rule: "When the minibatch size is multiplied by k, multiply the learning rate
/// by k" (Goyal et al. 2017, Accurate, large minibatch SGD, arXiv:1706.02677, 2.1), which goes with
/// a warm-up of about 5 epochs. Returns base_lr * global_batch_size / reference_batch_size.
/// `global_batch_size`: samples of one step on all ranks, accumulated ones too;
/// `reference_batch_size`: that of base_lr. The rule is one of SGD.
///
/// Any thread. Throws InvalidArgument unless both sizes are positive.
FARANDOLE_API double linear_scaled_lr(double base_lr, int64_t global_batch_size,
                                      int64_t reference_batch_size = 256);

}  // namespace farandole
