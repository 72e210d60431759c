// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "farandole/export.h"

namespace farandole {

struct RuleFormulas;
struct StepContext;

/// Pieces of parameters on an accelerator that are updated alike: one tensor each, of one
/// dimension, all float64 or all float32 (of half types too).
struct DeviceUpdate {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;            ///< not to be changed
  std::vector<std::vector<at::Tensor>> states;  ///< by state_names(), then as `parameters`
  /// By sum, then as `parameters`: what was measured of the whole parameter, a scalar of float64.
  /// Empty if UpdateRule::sums() is 0, and while it is measured.
  std::vector<std::vector<at::Tensor>> sums;
  int64_t step = 1;       ///< of the parameters, counted from 1
  bool is_first = false;  ///< their state is all zeros: no step has written it
};

/// The formula of an UpdateRule in operations of torch, for parameters on accelerators. They run on
/// the current stream; the host waits for none of them.
///
/// Threads: any; const.
class FARANDOLE_API DeviceUpdateRule {
 public:
  virtual ~DeviceUpdateRule();

  /// Of a rule with sums(): what each piece contributes, as DeviceUpdate::sums. It changes no
  /// state, as UpdateRule::measure().
  virtual std::vector<std::vector<at::Tensor>> measure_on_device(const DeviceUpdate& pieces) const;
  virtual void update_on_device(const DeviceUpdate& pieces) const = 0;

  /// What Farandole's kernels (optim/device) compute instead, where a device runs them. Null for
  /// rules that they do not know.
  virtual std::shared_ptr<const RuleFormulas> formulas(const StepContext& context) const;
};

}  // namespace farandole
