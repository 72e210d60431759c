// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "ddp/allocation/aliased_slot.h"
#include "ddp/allocation/allocation_predictor.h"
#include "farandole/ddp/bucket.h"
#include "farandole/export.h"

namespace farandole {

/// Gradients that are computed in their slots: during a backward, allocations that are predicted to
/// become gradients (AllocationPredictor) get the memory of the slots (AliasedSlot).
///
/// Threads: calls one at a time; begin() and end() on the thread of the backward.
class FARANDOLE_API BornGradients {
 public:
  /// None are; all calls do nothing.
  BornGradients() = default;
  /// `bytes` of each parameter's gradient; 0 if it is not to be computed in its slot.
  explicit BornGradients(const std::vector<size_t>& bytes);

  /// Makes slots of `buckets` available, if their memory is shared by the ranks. `parameters`: by
  /// index.
  void use(const std::shared_ptr<Buckets>& buckets, const std::vector<at::Tensor>& parameters);
  /// The slot to be lent to what computes the gradient; null: none.
  std::shared_ptr<AliasedSlot> slot(size_t parameter) const;

  /// A backward begins on this thread, and ends.
  void begin() const;
  void end() const;
  /// See AllocationPredictor.
  void learn(size_t parameter, const at::Tensor& gradient) const;

 private:
  std::shared_ptr<AllocationPredictor> predictor_;   ///< null if none are
  std::vector<std::shared_ptr<AliasedSlot>> slots_;  ///< by parameter
};

}  // namespace farandole
