// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "farandole/export.h"

namespace farandole {

class DeviceUpdateRule;

/// Some elements of one parameter and what belongs to them, one array each. T: float, or double for
/// float64 parameters. Arrays do not overlap.
template <class T>
struct UpdateBlock {
  T* parameter;
  const T* gradient;
  T* const* states;  ///< one array for each of state_names()
  int64_t elements;
};

/// Where a parameter is in its training.
struct StepContext {
  int64_t step;        ///< of the parameter, counted from 1
  bool is_first;       ///< its state is all zeros: no step has written it
  const double* sums;  ///< what measure() added up over the whole parameter; null if sums() == 0
};

/// How one step changes a parameter: the formula of an optimizer with its hyperparameters.
///
/// Element-wise rules have update() alone. Layer-wise ones (LAMB, LARS) first measure() all
/// elements of a parameter, on whichever ranks they are, and update() with the sums.
///
/// Threads: any; const. Blocks of one parameter may be worked on at the same time.
class FARANDOLE_API UpdateRule {
 public:
  virtual ~UpdateRule();

  /// Name and hyperparameters, as "AdamW(lr=0.001, betas=(0.9, 0.999), ...)". Ranks compare it.
  virtual std::string description() const = 0;
  /// The arrays that each parameter needs, by torch's names ("exp_avg"); all zeros at the start.
  virtual std::vector<std::string> state_names() const = 0;

  /// How many sums measure() adds up; 0: the rule is element-wise.
  virtual int sums() const { return 0; }
  /// Adds what the block contributes to `sums`. It changes no state: a step may end after it.
  virtual void measure(const UpdateBlock<float>& block, const StepContext& context,
                       double* sums) const;
  virtual void measure(const UpdateBlock<double>& block, const StepContext& context,
                       double* sums) const;

  virtual void update(const UpdateBlock<float>& block, const StepContext& context) const = 0;
  virtual void update(const UpdateBlock<double>& block, const StepContext& context) const = 0;

  /// The same for parameters on accelerators; null: the rule is for host memory alone.
  virtual const DeviceUpdateRule* on_device() const { return nullptr; }
};

/// One rule a parameter group.
using UpdateRules = std::vector<std::shared_ptr<const UpdateRule>>;

}  // namespace farandole
