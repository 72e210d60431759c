// SPDX-License-Identifier: Apache-2.0
#include "ddp/cooperative_reduction.h"

#include <ATen/record_function.h>

#include <utility>

#include "ddp/bucket_record.h"

namespace farandole {

std::unique_ptr<BucketConsumer> CooperativeReduction::make(
    const std::shared_ptr<const Buckets>& buckets, const ReplicaGroup& group, size_t report_bytes) {
  const auto shared = group.shared_memory();
  const auto& memory = buckets->symmetric();
  if (!shared || !memory || buckets->plan().devices().size() != 1) return nullptr;
  auto reduction = shared->make_bucket_reduction(memory, buckets->ranges(), report_bytes);
  return std::unique_ptr<BucketConsumer>(
      new CooperativeReduction(buckets, shared, std::move(reduction)));
}

CooperativeReduction::CooperativeReduction(std::shared_ptr<const Buckets> buckets,
                                           std::shared_ptr<comm::SharedMemory> shared,
                                           std::shared_ptr<comm::BucketReduction> reduction)
    : buckets_(std::move(buckets)), shared_(std::move(shared)), reduction_(std::move(reduction)) {}

void CooperativeReduction::begin(double weight, bool checks_finite) {
  const bool records = at::hasCallbacks();
  if (records && !records_) {
    reduction_->set_recorder(
        [this](size_t bucket) { return record_bucket_reduction(*buckets_, bucket); });
  } else if (!records && records_) {
    reduction_->set_recorder(nullptr);
  }
  records_ = records;
  reduction_->begin(weight, checks_finite);
}

bool CooperativeReduction::finish(const RankReport& report, bool complete) {
  return reduction_->finish(report.data(), complete, {});
}

}  // namespace farandole
