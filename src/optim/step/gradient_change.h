// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace farandole {

/// A change of an averaged gradient before it is used.
struct GradientChange {
  enum class Kind {
    kScale,  ///< times `value`
    kClamp,  ///< `value`: the largest absolute value
    kNorm    ///< of accelerators: times `factor`, which makes the norm at most `value`
  };
  Kind kind;
  double value;
  at::Tensor factor = {};  ///< a scalar of float64 on the device
};

}  // namespace farandole
