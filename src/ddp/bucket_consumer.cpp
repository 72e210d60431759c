// SPDX-License-Identifier: Apache-2.0
#include "farandole/ddp/bucket_consumer.h"

namespace farandole {

BucketConsumer::~BucketConsumer() = default;

}  // namespace farandole
