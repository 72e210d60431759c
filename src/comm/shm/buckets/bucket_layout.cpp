// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/buckets/bucket_layout.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "comm/shm/control_block.h"
#include "farandole/error.h"
#include "kernels/reduce_kernels.h"

namespace farandole::comm::shm {
namespace {

size_t bytes_of(const BucketRange& bucket) { return bucket.count * size_of(bucket.dtype); }

[[noreturn]] void refuse(size_t index, const BucketRange& bucket, const std::string& why,
                         int world_size) {
  throw InvalidArgument(
      "bucket-layout",
      "make_bucket_reduction was called with bucket " + std::to_string(index) + ", " +
          name_of(bucket.dtype) + "[" + std::to_string(bucket.count) + "] at byte " +
          std::to_string(bucket.offset_bytes) + ".",
      why,
      "place floating-point buckets one after the other, each padded to a multiple of " +
          std::to_string(static_cast<size_t>(world_size) * kCacheLine) + " bytes.");
}

void check_bucket(size_t index, const BucketRange& bucket, size_t memory_bytes, int world_size) {
  if (!is_floating(bucket.dtype)) {
    refuse(index, bucket, "elements of this dtype cannot be averaged.", world_size);
  }
  if (bucket.offset_bytes % kCacheLine != 0) {
    refuse(index, bucket, "it must begin at a multiple of 64 bytes.", world_size);
  }
  const size_t room = memory_bytes - std::min(bucket.offset_bytes, memory_bytes);
  if (bucket.count > room / size_of(bucket.dtype)) {
    refuse(index, bucket, "it extends past the end of the memory.", world_size);
  }
  if (bytes_of(bucket) % (static_cast<size_t>(world_size) * kCacheLine) != 0) {
    refuse(index, bucket, "each rank reduces an equal share of whole cache lines.", world_size);
  }
}

void check_apart(const std::vector<BucketRange>& buckets, int world_size) {
  std::vector<size_t> order(buckets.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return buckets[a].offset_bytes < buckets[b].offset_bytes; });
  size_t end = 0;
  for (const size_t index : order) {
    const BucketRange& bucket = buckets[index];
    if (bucket.count == 0) continue;
    if (bucket.offset_bytes < end) {
      refuse(index, bucket, "it overlaps with another bucket.", world_size);
    }
    end = bucket.offset_bytes + bytes_of(bucket);
  }
}

}  // namespace

void check_buckets(const std::vector<BucketRange>& buckets, size_t memory_bytes, int world_size) {
  for (size_t index = 0; index < buckets.size(); ++index) {
    check_bucket(index, buckets[index], memory_bytes, world_size);
  }
  check_apart(buckets, world_size);
}

Fingerprint fingerprint_of(const std::vector<BucketRange>& buckets) {
  FingerprintOfNumbers numbers;
  for (const BucketRange& bucket : buckets) {
    numbers.add(uint64_t{bucket.offset_bytes});
    numbers.add(uint64_t{bucket.count});
    numbers.add(static_cast<uint64_t>(bucket.dtype));
  }
  return numbers.value();
}

size_t bytes_of(const std::vector<BucketRange>& buckets) {
  size_t bytes = 0;
  for (const BucketRange& bucket : buckets) bytes += bytes_of(bucket);
  return bytes;
}

}  // namespace farandole::comm::shm
