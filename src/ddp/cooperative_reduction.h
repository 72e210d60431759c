// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "farandole/ddp/bucket.h"
#include "farandole/ddp/bucket_consumer.h"
#include "farandole/ddp/replica_group.h"

namespace farandole {

/// Buckets in symmetric memory, reduced by whoever finds one complete (comm/bucket_reduction.h).
class CooperativeReduction final : public BucketConsumer {
 public:
  /// Null if the ranks share no memory, or buckets are elsewhere. Collective.
  static std::unique_ptr<BucketConsumer> make(const std::shared_ptr<const Buckets>& buckets,
                                              const ReplicaGroup& group, size_t report_bytes);

  bool in_plan_order() const override { return false; }
  void begin(double weight, bool checks_finite) override;
  void launch(size_t bucket) override { reduction_->publish(bucket); }
  void skip(size_t bucket) override { reduction_->skip(bucket); }
  void progress() override { reduction_->progress(); }
  bool is_awaited() const override { return reduction_->in_round(); }
  bool finish(const RankReport& report, bool complete) override;
  std::optional<bool> are_finite() const override { return reduction_->are_finite(); }
  const std::byte* report_of(int rank) const override { return reduction_->report_of(rank); }
  comm::BucketTimes times_of(size_t bucket) const override { return reduction_->times_of(bucket); }

 private:
  CooperativeReduction(std::shared_ptr<const Buckets> buckets,
                       std::shared_ptr<comm::SharedMemory> shared,
                       std::shared_ptr<comm::BucketReduction> reduction);

  const std::shared_ptr<const Buckets> buckets_;
  const std::shared_ptr<comm::SharedMemory> shared_;  ///< of reduction_, which must not outlive it
  const std::shared_ptr<comm::BucketReduction> reduction_;
  bool records_ = false;  ///< a profiler ran as the round began
};

}  // namespace farandole
