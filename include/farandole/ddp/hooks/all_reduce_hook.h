// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "farandole/ddp/comm_hook.h"
#include "farandole/export.h"
#include "farandole/process_group/init.h"

namespace farandole {

/// The mean, with nothing left out: one all_reduce a bucket, in place. What is done without a hook;
/// one to start from.
///
/// Backend farandole adds half types up in float32 and divides the sum. Elsewhere each rank divides
/// before the sum, as not every backend averages.
/// Threads: as CommHook.
class FARANDOLE_API AllReduceHook : public CommHook {
 public:
  /// `group`: of any backend; the empty pointer means the default group.
  explicit AllReduceHook(const Group& group = {});
  ~AllReduceHook() override;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;

 private:
  const Group group_;
};

}  // namespace farandole
