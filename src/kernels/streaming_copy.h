// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "farandole/export.h"

namespace farandole {

/// memcpy() with stores that go past the caches where the CPU has such (x86): they neither read the
/// lines that they replace nor push others out. For memory that is not used again soon. Both
/// addresses have the same offset in their cache lines.
///
/// Such stores are in no order with others: end_streaming_copies() before anybody is told of them.
/// Any thread.
FARANDOLE_API void streaming_copy(void* to, const void* from, size_t bytes);
/// Whatever this thread has streamed comes before what it stores from now on.
FARANDOLE_API void end_streaming_copies();

}  // namespace farandole
