// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/comm.hpp>

#include "farandole/export.h"

namespace farandole {

/// Computes the mean of the gradients of a bucket over the ranks. The interface is torch's: hooks
/// written for torch, also in Python, can be used here, and these hooks can be used with torch's
/// reducer.
///
/// runHook() starts the exchange and returns a future of the averaged gradients, in the order of
/// the bucket's buffer. It may use this buffer as its memory until the future is complete; the
/// GradBucket itself may be gone when runHook() returns. Errors are thrown or stored in the future.
///
/// Ranks call runHook() for the same buckets in the same order; the bucket with isLast() is the
/// last. A hook serves one model. An Inf or NaN in the bucket of one rank must be in the result on
/// every rank. (Hooks that are not CommHooks may lose it; their buckets are checked first.)
/// Threads: runHook() is called by one thread at a time, and again for a bucket only after its
/// future is complete; parseHookResult() by any thread.
class FARANDOLE_API CommHook : public c10d::CommHookInterface {
 public:
  ~CommHook() override;

  /// The next runHook() has the buckets of a new plan: drop everything that is kept per bucket, or
  /// of gradients of another plan. Does nothing by default.
  virtual void begin_plan();

  /// `result` as a tensor, or its first tensor if it is a list.
  at::Tensor parseHookResult(const c10::IValue& result) override;
};

}  // namespace farandole
