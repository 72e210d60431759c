// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unordered_map>

#include "farandole/ddp/comm_hook.h"
#include "farandole/export.h"
#include "farandole/process_group/init.h"

namespace farandole {

struct TopKOptions {
  /// Part of a bucket's elements that travel, over 0 and up to 1; one element at least does.
  double ratio = 0.01;
  /// Whether what did not travel is added to the next step's gradient, so that nothing is lost,
  /// only late. Without it small gradients never arrive.
  bool use_error_feedback = true;
};

/// Each rank sends the elements of largest magnitude in a bucket, with their indices, and keeps the
/// rest for the next step (Lin et al., Deep Gradient Compression, arXiv:1712.01887, without its
/// momentum; convergence: Stich et al., Sparsified SGD with Memory, arXiv:1809.07599):
///
///   a = gradient + error,  sent = top_k(|a|) of a,  error = a - sent,  result = mean of all sent
///
/// Ranks add in rank order, half types in float32: all have the same bits, with ratio 1 those of
/// AllReduceHook.
/// Wire: two all_gathers of ratio * elements, the values and 4 bytes each for the indices (8 in
/// buckets of 2^31 elements and more); over about ratio 1 / world_size an all_reduce is less.
/// Memory: the error, as large as the gradients, in float32 for half types; NaN and Inf are sent
/// and not kept. It starts anew with a new plan, and when a bucket gets other parameters.
/// Threads: as CommHook.
class FARANDOLE_API TopKHook : public CommHook {
 public:
  /// `group`: of any backend; the empty pointer means the default group. Throws InvalidArgument if
  /// the ratio is not over 0 and up to 1.
  explicit TopKHook(const Group& group = {}, const TopKOptions& options = {});
  ~TopKHook() override;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  /// Forgets the errors.
  void begin_plan() override;

 private:
  struct Memory;
  at::Tensor with_error(const c10d::GradBucket& bucket);

  const Group group_;
  const TopKOptions options_;
  std::unordered_map<size_t, Memory> memories_;  ///< by index of the bucket
};

}  // namespace farandole
