// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace farandole {

/// A change of an averaged gradient before it is used.
struct GradientChange {
  enum class Kind { kScale, kClamp };
  Kind kind;
  double value;  ///< a factor, or the largest absolute value
};

}  // namespace farandole
