// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "farandole/comm/bucket_reduction.h"
#include "farandole/comm/fingerprint.h"

namespace farandole::comm::shm {

/// Throws InvalidArgument unless the buckets lie in a buffer of `memory_bytes` as
/// bucket_reduction.h asks: aligned, divisible among `world_size` ranks, floating, apart. Nothing
/// has been sent by then.
void check_buckets(const std::vector<BucketRange>& buckets, size_t memory_bytes, int world_size);

Fingerprint fingerprint_of(const std::vector<BucketRange>& buckets);

/// Bytes of all buckets.
size_t bytes_of(const std::vector<BucketRange>& buckets);

}  // namespace farandole::comm::shm
