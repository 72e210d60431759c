// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Allocator.h>

#include <functional>

#include "farandole/export.h"

namespace farandole {

// Memory of Farandole that torch uses for tensors, known by its address alone: its DataPtr has the
// memory itself as context, as that of torch's own allocator has, so that code which keeps a plain
// pointer (Allocator::raw_allocate(), as oneDNN calls it) can give it back.
//
// Threads: any, also at exit and in a forked child.

/// Lends `data` until torch frees it; then calls `take_back`, on the thread that frees it. The same
/// address must not be lent twice at a time.
FARANDOLE_API at::DataPtr lend_memory(void* data, std::function<void()> take_back);

/// Gives lent memory back. False if `data` was not lent.
FARANDOLE_API bool give_back_lent(void* data);

/// Whether `data` owns lent memory, directly: a copy-on-write clone of a tensor may share it.
FARANDOLE_API bool owns_lent_memory(const at::DataPtr& data);

}  // namespace farandole
