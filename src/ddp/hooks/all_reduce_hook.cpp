// SPDX-License-Identifier: Apache-2.0
#include "farandole/ddp/hooks/all_reduce_hook.h"

#include "ddp/hooks/average.h"

namespace farandole {

AllReduceHook::AllReduceHook(const Group& group) : group_(group ? group : default_group()) {}
AllReduceHook::~AllReduceHook() = default;

c10::intrusive_ptr<c10::ivalue::Future> AllReduceHook::runHook(c10d::GradBucket& bucket) {
  return start_average(group_, bucket.getBuffer())->getFuture();
}

}  // namespace farandole
