// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstddef>

#include "farandole/export.h"
#include "optim/device/kernel_arguments.h"
#include "optim/device/rule_formulas.h"

namespace farandole {

/// Launches a kernel for pieces that are alike, kKernelPieces at a time, on the current stream.
class FARANDOLE_API KernelLaunches {
 public:
  enum class Kind {
    kUpdate,
    kMeasure  ///< of a layer-wise rule: writes what the pieces contribute to where their sums are
  };

  /// `alike`: what is the same for all of them. `formulas` lives longer.
  KernelLaunches(c10::Device device, Kind kind, const RuleFormulas& formulas,
                 const KernelTable& alike);
  /// Does nothing for a piece without elements, whose sums stay as they are. Throws SystemError, as
  /// end().
  void add(const KernelPiece& piece);
  /// Launches the rest.
  void end();

 private:
  template <class T>
  void launch_formula(const AnyFormula<T>& formula);

  const c10::Device device_;
  const Kind kind_;
  const RuleFormulas& formulas_;
  KernelTable table_;
};

}  // namespace farandole
