// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "farandole/comm/shared_memory.h"
#include "farandole/ddp/bucket_plan.h"
#include "farandole/export.h"

namespace farandole {

class ReplicaGroup;

/// The memory of a plan's buckets: one flat buffer per device, in symmetric memory if the ranks
/// share memory.
///
/// Threads: const calls from any thread.
class FARANDOLE_API Buckets {
 public:
  /// Allocates zeros. Collective if `shared` is given: the CPU buffer is then symmetric memory of
  /// it; or if `group` is: it then allocates those of accelerators.
  Buckets(BucketPlan plan, const std::shared_ptr<comm::SharedMemory>& shared,
          const ReplicaGroup* group = nullptr);

  const BucketPlan& plan() const { return plan_; }
  size_t size() const { return plan_.buckets.size(); }
  /// All gradients of a bucket as one tensor.
  at::Tensor flat(size_t bucket) const;
  /// The same with the padding at its end: world_size equal shards.
  at::Tensor padded(size_t bucket) const;
  /// The same as a tensor that may be moved to other memory by resize_(), as torch's hooks do.
  at::Tensor resizable(size_t bucket) const;
  /// The slot of one gradient in its bucket, in the shape and, if they are dense, the strides of
  /// `parameter`. It keeps the memory alive and is not a view for autograd.
  at::Tensor slot_tensor(size_t bucket, const BucketPlan::Slot& slot,
                         const at::Tensor& parameter) const;
  /// The strides of that slot.
  static std::vector<int64_t> strides_of_slot(const at::Tensor& parameter);

  /// The symmetric memory of the buckets; null if there is none.
  const std::shared_ptr<comm::SymmetricMemory>& symmetric() const { return symmetric_; }
  /// Where the buckets lie in it.
  std::vector<comm::BucketRange> ranges() const;

 private:
  /// The flat buffer of one device.
  struct Buffer {
    at::Device device;
    std::shared_ptr<void> owner;  ///< frees the memory
    std::byte* address;
  };
  const Buffer& buffer_of(at::Device device) const;
  at::Tensor tensor_at(const BucketPlan::Bucket& bucket, int64_t offset, at::IntArrayRef sizes,
                       at::IntArrayRef strides) const;

  BucketPlan plan_;
  std::shared_ptr<comm::SymmetricMemory> symmetric_;
  std::vector<Buffer> buffers_;
};

}  // namespace farandole
