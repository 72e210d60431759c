// SPDX-License-Identifier: Apache-2.0
#include "ddp/cooperative_reduction.h"

#include <utility>

namespace farandole {

std::unique_ptr<BucketConsumer> CooperativeReduction::make(const Buckets& buckets,
                                                           const ReplicaGroup& group,
                                                           size_t note_bytes) {
  const auto communicator = group.communicator();
  const auto& memory = buckets.symmetric();
  if (!communicator || !memory || buckets.plan().devices().size() != 1) return nullptr;
  auto reduction = communicator->make_bucket_reduction(memory, buckets.ranges(), note_bytes);
  if (!reduction) return nullptr;
  return std::unique_ptr<BucketConsumer>(
      new CooperativeReduction(communicator, std::move(reduction)));
}

CooperativeReduction::CooperativeReduction(std::shared_ptr<comm::Communicator> communicator,
                                           std::shared_ptr<comm::BucketReduction> reduction)
    : communicator_(std::move(communicator)), reduction_(std::move(reduction)) {}

bool CooperativeReduction::finish(const Note& note, bool complete) {
  return reduction_->finish(note.data(), complete, {});
}

}  // namespace farandole
