// SPDX-License-Identifier: Apache-2.0
#include "ddp/bucket_record.h"

#include <ATen/record_function.h>

#include <string>
#include <string_view>
#include <unordered_map>

namespace farandole {

std::shared_ptr<void> record_bucket_reduction(const Buckets& buckets, size_t bucket) {
  if (!at::hasCallbacks()) return nullptr;
  auto record = std::make_shared<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  if (!record->isActive()) return nullptr;
  const std::unordered_map<std::string, c10::IValue> inputs{
      {"bucket", static_cast<int64_t>(bucket)},
      {"bytes", buckets.plan().buckets[bucket].bytes()},
  };
  record->before(std::string_view("farandole:bucket_reduction"), &inputs);
  return record;
}

}  // namespace farandole
