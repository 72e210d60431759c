// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace farandole {

/// Calls work(begin, end) for ranges that make up [0, count), on torch's threads if there are more
/// than `grain`. at::parallel_for() is a template: in a library compiled without OpenMP it has one
/// thread, and OpenMP here could be another runtime than torch's.
void run_parallel(int64_t count, int64_t grain, c10::function_ref<void(int64_t, int64_t)> work);

}  // namespace farandole
