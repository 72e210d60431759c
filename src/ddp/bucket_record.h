// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "farandole/ddp/bucket.h"

namespace farandole {

/// Shows torch.profiler what this thread does for a bucket, as "farandole:bucket_reduction" with
/// the keyword inputs `bucket` and `bytes`, as long as the result lives. Null if no profiler runs.
std::shared_ptr<void> record_bucket_reduction(const Buckets& buckets, size_t bucket);

}  // namespace farandole
