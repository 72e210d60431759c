// SPDX-License-Identifier: Apache-2.0
#include "process_group/hooks.h"

#include "farandole/process_group/process_group.h"

#ifdef C10D_BACKEND_HAS_HOOKS

namespace farandole {

void ProcessGroupFarandole::registerAbortHook(int64_t hook_id, c10d::AbortHook hook) {
  hooks_->abort.add(hook_id, std::move(hook));
}

void ProcessGroupFarandole::unregisterAbortHook(int64_t hook_id) { hooks_->abort.remove(hook_id); }

void ProcessGroupFarandole::registerCompletionHook(int64_t hook_id, c10d::CompletionHook hook) {
  hooks_->completion.add(hook_id, [hook = std::move(hook)](uint64_t key, float milliseconds) {
    c10d::CompletionHookArgs arguments;
    arguments.completionKey = key;
    arguments.duration_ms = milliseconds;
    hook(arguments);
  });
}

void ProcessGroupFarandole::unregisterCompletionHook(int64_t hook_id) {
  hooks_->completion.remove(hook_id);
}

}  // namespace farandole

#endif
