// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "farandole/export.h"

namespace farandole {

/// What the plan needs to know of a parameter.
struct PlannedParameter {
  int64_t elements;
  at::ScalarType dtype;
  at::Device device;
};

/// How many bytes go into a bucket; each (dtype, device) counts its own buckets. A bucket is closed
/// by the parameter with which it reaches its cap, so it is smaller than its cap and that parameter
/// together. A parameter larger than the cap joins what is in the open bucket: small neighbours
/// then cost no collective of their own.
struct BucketCaps {
  /// Of the first bucket: small, so that the first reduction begins early.
  int64_t first_bytes;
  /// Of those in between.
  int64_t bytes;
  /// Of the last bucket, the one that nothing is left to hide behind: it holds as many of the
  /// parameters that come last as fit into last_bytes, one at least, whatever the caps above say of
  /// them. 0: as any other.
  int64_t last_bytes = 0;
  /// The caps of the first buckets one by one, in place of first_bytes; later ones have `bytes`.
  std::vector<int64_t> list = {};
};

/// Which gradient lies where: buckets of one dtype and device, in the order in which they are
/// launched. Element-wise the same on every rank, since it depends on nothing else.
struct FARANDOLE_API BucketPlan {
  /// The place of one gradient.
  struct Slot {
    size_t parameter;  ///< index into the parameters
    int64_t offset;    ///< elements from the start of the bucket; slots of whole cache lines first
    int64_t elements;
  };
  struct Bucket {
    at::ScalarType dtype;
    at::Device device;
    int64_t elements;         ///< of its gradients, without gaps; may be 0
    int64_t padded_elements;  ///< a multiple of world_size * 64 bytes, so that shards are equal
    int64_t offset_bytes;     ///< in the flat buffer of its device, a multiple of 128
    std::vector<Slot> slots;  ///< in the order in which gradients come
    /// Of its gradients, without padding.
    int64_t bytes() const { return elements * static_cast<int64_t>(c10::elementSize(dtype)); }
  };
  std::vector<Bucket> buckets;

  /// Bytes of the flat buffer of `device`, padding included.
  int64_t buffer_bytes(at::Device device) const;
  /// The devices of the buckets, each once, in order of appearance.
  std::vector<at::Device> devices() const;
  /// Equal plans have equal hashes, on every machine. Devices of one type count in order of
  /// appearance: ranks that use different GPUs in the same way have equal hashes.
  uint64_t hash() const;
};

/// Parameters 0, 1, ..., count - 1 from the last to the first: about the order in which backward
/// reaches them.
FARANDOLE_API std::vector<size_t> reverse_registration_order(size_t count);

/// Packs the parameters, in `order` (indices, each at most once), into buckets: a parameter goes
/// into the open bucket of its dtype and device; a bucket that reaches its cap is closed. Buckets
/// are ordered by when their last parameter comes. Parameters that `order` leaves out have no
/// place.
///
/// Pure: no network, any thread. Throws InvalidArgument for a cap or world_size < 1, for fewer than
/// 0 elements, and for an order that names a parameter twice or one that is not there.
FARANDOLE_API BucketPlan make_bucket_plan(const std::vector<PlannedParameter>& parameters,
                                          const std::vector<size_t>& order, const BucketCaps& caps,
                                          int world_size);

}  // namespace farandole
