// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "farandole/comm/fingerprint.h"
#include "farandole/export.h"

namespace farandole {

/// The properties of a parameter that a plan depends on.
struct PlannedParameter {
  int64_t elements;
  at::ScalarType dtype;
  at::Device device;
};

/// Bytes of a bucket; each (dtype, device) counts its own buckets. The parameter with which a
/// bucket reaches its cap closes the bucket, so a bucket is smaller than its cap plus this
/// parameter. A parameter larger than the cap joins the open bucket, so that its small neighbours
/// need no collective of their own.
struct BucketCaps {
  /// Cap of the first bucket: small, so that the first reduction begins early.
  int64_t first_bytes;
  /// Cap of the other buckets.
  int64_t bytes;
  /// Size of the last bucket, whose reduction overlaps with nothing: it takes as many of the last
  /// parameters as fit into last_bytes, at least one, whatever the caps above are. 0: no special
  /// size.
  int64_t last_bytes = 0;
  /// Caps of the first buckets one by one, instead of first_bytes; later buckets have `bytes`.
  std::vector<int64_t> list = {};
};

/// Where each gradient is stored: buckets of one dtype and device, in launch order. The same on
/// every rank, because it depends on the arguments of make_bucket_plan() only.
struct FARANDOLE_API BucketPlan {
  /// Where one gradient is stored.
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
    std::vector<Slot> slots;  ///< in the order in which gradients arrive
    /// Of its gradients, without padding.
    int64_t bytes() const { return elements * static_cast<int64_t>(c10::elementSize(dtype)); }
  };
  std::vector<Bucket> buckets;

  /// Bytes of the flat buffer of `device`, padding included.
  int64_t buffer_bytes(at::Device device) const;
  /// The devices of the buckets, each once, in order of appearance.
  std::vector<at::Device> devices() const;
  /// Equal plans have equal fingerprints, on every machine. Devices of one type count in order of
  /// appearance: ranks that use different GPUs in the same way have equal fingerprints.
  comm::Fingerprint fingerprint() const;
};

/// Parameters 0, 1, ..., count - 1 from the last to the first: about the order in which backward
/// reaches them.
FARANDOLE_API std::vector<size_t> reverse_registration_order(size_t count);

/// Packs the parameters, in `order` (indices, each at most once), into buckets: a parameter goes
/// into the open bucket of its dtype and device; a bucket that reaches its cap is closed. Buckets
/// are in the order of their last parameters. Parameters that are not in `order` have no slot.
///
/// Pure: no network, any thread. Throws InvalidArgument for a cap or world_size < 1, for fewer than
/// 0 elements, and for an order that names a parameter twice or one that is not there.
FARANDOLE_API BucketPlan make_bucket_plan(const std::vector<PlannedParameter>& parameters,
                                          const std::vector<size_t>& order, const BucketCaps& caps,
                                          int world_size);

}  // namespace farandole
