// SPDX-License-Identifier: Apache-2.0
#include "farandole/ddp/bucket.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "farandole/ddp/replica_group.h"
#include "farandole/error.h"
#include "process_group/data_type.h"

namespace farandole {
namespace {

/// Strides of a tensor without gaps, last dimension innermost.
std::vector<int64_t> row_major(at::IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

/// The dtype that the comm layer adds up: a complex element counts as two real ones.
comm::BucketRange range_of(const BucketPlan::Bucket& bucket) {
  const bool is_complex = c10::isComplexType(bucket.dtype);
  const auto dtype = data_type_of(is_complex ? c10::toRealValueType(bucket.dtype) : bucket.dtype);
  if (!dtype) {
    throw NotSupported(
        "gradient-dtype",
        std::string("gradients of dtype ") + c10::toString(bucket.dtype) + " cannot be averaged.",
        "no backend of Farandole can sum elements of this dtype.",
        "exclude such parameters with parameters_to_ignore, or convert the module.");
  }
  return {static_cast<size_t>(bucket.offset_bytes),
          static_cast<size_t>(bucket.padded_elements) * (is_complex ? 2 : 1), *dtype};
}

}  // namespace

Buckets::Buckets(BucketPlan plan, const std::shared_ptr<comm::SharedMemory>& shared,
                 const ReplicaGroup* group)
    : plan_(std::move(plan)) {
  for (const at::Device device : plan_.devices()) {
    const int64_t bytes = plan_.buffer_bytes(device);
    if (shared && device.is_cpu()) {
      symmetric_ = shared->allocate_symmetric(static_cast<size_t>(bytes));
      buffers_.push_back({device, symmetric_, static_cast<std::byte*>(symmetric_->local())});
    } else {
      const at::Tensor memory =
          group != nullptr && !device.is_cpu()
              ? group->zeros(bytes, device)
              : at::zeros({bytes}, at::TensorOptions(device).dtype(at::kByte));
      buffers_.push_back({device, std::make_shared<at::Tensor>(memory),
                          static_cast<std::byte*>(memory.mutable_data_ptr())});
    }
  }
}

const Buckets::Buffer& Buckets::buffer_of(at::Device device) const {
  for (const Buffer& buffer : buffers_) {
    if (buffer.device == device) return buffer;
  }
  throw Error("our-bug", "the plan has no buffer on " + device.str() + ".",
              "this is a bug in Farandole.", "report it with the model.");
}

at::Tensor Buckets::tensor_at(const BucketPlan::Bucket& bucket, int64_t offset,
                              at::IntArrayRef sizes, at::IntArrayRef strides) const {
  const Buffer& buffer = buffer_of(bucket.device);
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(bucket.dtype));
  return at::from_blob(
      buffer.address + bucket.offset_bytes + offset * element_bytes, sizes, strides,
      [owner = buffer.owner](void*) {}, at::TensorOptions(bucket.device).dtype(bucket.dtype),
      bucket.device);
}

at::Tensor Buckets::flat(size_t bucket) const {
  const BucketPlan::Bucket& planned = plan_.buckets[bucket];
  return tensor_at(planned, 0, {planned.elements}, {1});
}

at::Tensor Buckets::padded(size_t bucket) const {
  const BucketPlan::Bucket& planned = plan_.buckets[bucket];
  return tensor_at(planned, 0, {planned.padded_elements}, {1});
}

at::Tensor Buckets::resizable(size_t bucket) const {
  const BucketPlan::Bucket& planned = plan_.buckets[bucket];
  const Buffer& buffer = buffer_of(planned.device);
  return at::for_blob(buffer.address + planned.offset_bytes, {planned.elements})
      .deleter([owner = buffer.owner](void*) {})
      .options(at::TensorOptions(planned.device).dtype(planned.dtype))
      .target_device(planned.device)
      .resizeable_storage()
      .allocator(c10::GetAllocator(planned.device.type()))
      .make_tensor();
}

at::Tensor Buckets::slot_tensor(size_t bucket, const BucketPlan::Slot& slot,
                                const at::Tensor& parameter) const {
  return tensor_at(plan_.buckets[bucket], slot.offset, parameter.sizes(),
                   strides_of_slot(parameter));
}

std::vector<int64_t> Buckets::strides_of_slot(const at::Tensor& parameter) {
  return parameter.is_non_overlapping_and_dense() ? parameter.strides().vec()
                                                  : row_major(parameter.sizes());
}

std::vector<comm::BucketRange> Buckets::ranges() const {
  std::vector<comm::BucketRange> ranges;
  for (const auto& bucket : plan_.buckets) ranges.push_back(range_of(bucket));
  return ranges;
}

}  // namespace farandole
