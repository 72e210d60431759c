// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/comm.hpp>

#include "farandole/export.h"

namespace farandole {

/// How the gradients of a bucket become the mean of all ranks'. The interface is torch's: hooks
/// written for it, in Python too, serve in place of these, and these serve torch's reducer.
///
/// runHook() starts the exchange and returns a future of the averaged gradients, in the order of
/// the bucket's buffer. It may use that buffer as its memory until then; the GradBucket itself may
/// go when it returns. It throws, or the future holds, what goes wrong.
///
/// Ranks call runHook() for the same buckets in the same order, the one that isLast() last. A hook
/// serves one model. An Inf or NaN in the bucket of one rank is one in the result on every rank.
/// (Hooks of torch's interface alone may lose it: their buckets are looked at.) Threads: one at a
/// time calls runHook(), and a bucket again when its future is done; parseHookResult() any.
class FARANDOLE_API CommHook : public c10d::CommHookInterface {
 public:
  ~CommHook() override;

  /// The buckets of the next runHook() are those of a new plan: what is kept by bucket, or of
  /// gradients that came under another plan, is no more. Nothing by default.
  virtual void begin_plan();

  /// The tensor that `result` is, or the first one of the list that it is.
  at::Tensor parseHookResult(const c10::IValue& result) override;
};

}  // namespace farandole
