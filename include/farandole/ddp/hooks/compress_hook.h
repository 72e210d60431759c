// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unordered_map>

#include "farandole/ddp/comm_hook.h"
#include "farandole/export.h"
#include "farandole/process_group/init.h"

namespace farandole {

struct CompressOptions {
  /// at::kBFloat16 (the range of float32) or at::kHalf (three bits more, but nothing over 65504);
  /// or at::kFloat, for half types that are to be added up in float32.
  at::ScalarType dtype = at::kBFloat16;
};

/// Gradients of float32 and float64 travel as a half type: cast, averaged, cast back. With
/// at::kFloat those of float64 and of half types travel as float32. Other buckets travel as they
/// are.
///
/// Backend farandole adds up in float32 and rounds the mean once; others add in what travels.
/// Memory: one buffer of what travels for each bucket, kept from step to step.
/// Threads: as CommHook.
class FARANDOLE_API CompressHook : public CommHook {
 public:
  /// `group`: of any backend; the empty pointer means the default group. Throws InvalidArgument if
  /// the dtype is none of them.
  explicit CompressHook(const Group& group = {}, const CompressOptions& options = {});
  ~CompressHook() override;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;

 private:
  at::Tensor wire_for(const c10d::GradBucket& bucket);

  const Group group_;
  const CompressOptions options_;
  std::unordered_map<size_t, at::Tensor> wires_;  ///< what travels, by index of the bucket
};

}  // namespace farandole
