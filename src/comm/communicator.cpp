// SPDX-License-Identifier: Apache-2.0
#include "farandole/comm/communicator.h"

namespace farandole::comm {

Communicator::~Communicator() = default;

std::shared_ptr<BucketReduction> Communicator::make_bucket_reduction(
    std::shared_ptr<SymmetricMemory> /*memory*/, const std::vector<BucketRange>& /*buckets*/,
    size_t /*report_bytes*/) {
  return nullptr;
}
Transfer::~Transfer() = default;
Signals::~Signals() = default;
BucketReduction::~BucketReduction() = default;

}  // namespace farandole::comm
