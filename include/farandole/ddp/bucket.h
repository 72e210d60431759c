// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "farandole/comm/communicator.h"
#include "farandole/ddp/bucket_plan.h"
#include "farandole/export.h"

namespace farandole {

/// The memory of a plan's buckets: one flat buffer a device, in symmetric memory where the ranks
/// share a host.
///
/// Threads: const from any.
class FARANDOLE_API Buckets {
 public:
  /// Allocates, all zeros. Collective if `communicator` is given: then the buffer of the CPU is
  /// symmetric memory of it.
  Buckets(BucketPlan plan, const std::shared_ptr<comm::Communicator>& communicator);

  const BucketPlan& plan() const { return plan_; }
  size_t size() const { return plan_.buckets.size(); }
  /// The gradients of a bucket, one after the other.
  at::Tensor flat(size_t bucket) const;
  /// The same with the padding behind it: world_size equal shards.
  at::Tensor padded(size_t bucket) const;
  /// The same as a tensor that resize_() may move to other memory, as torch's hooks do.
  at::Tensor resizable(size_t bucket) const;
  /// The place of one gradient in its bucket, in the shape and, if they are dense, the strides of
  /// `parameter`. It keeps the memory alive and is no view in the sense of autograd.
  at::Tensor place_of(size_t bucket, const BucketPlan::Slot& slot,
                      const at::Tensor& parameter) const;
  /// The strides of that place.
  static std::vector<int64_t> strides_of_place(const at::Tensor& parameter);

  /// The symmetric memory of the buckets; null if there is none.
  const std::shared_ptr<comm::SymmetricMemory>& symmetric() const { return symmetric_; }
  /// Where the buckets lie in it.
  std::vector<comm::BucketRange> ranges() const;

 private:
  /// The flat buffer of one device.
  struct Buffer {
    at::Device device;
    std::shared_ptr<void> owner;  ///< lets go of the memory
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
