// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "ddp/allocation/born_gradients.h"
#include "ddp/slot_tensor.h"
#include "farandole/ddp/bucket.h"
#include "farandole/ddp/bucket_consumer.h"
#include "farandole/export.h"

namespace farandole {

/// The properties of a parameter that a plan depends on.
struct FARANDOLE_API ParameterKind {
  bool is_active;  ///< has requires_grad
  at::ScalarType dtype;
  at::Device device;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;

  static ParameterKind of(const at::Tensor& parameter);
  bool operator==(const ParameterKind& other) const;
};

/// Buckets for one set of active parameters, and what has been learned about them.
struct FARANDOLE_API PlannedBuckets {
  std::vector<ParameterKind> parameters;
  std::vector<int> expected;      ///< by parameter: gradients of a backward
  std::vector<size_t> bucket_of;  ///< by parameter that has a slot
  /// Of a plan that is not in use: the tensors of its slots, by parameter. The program may hold
  /// them.
  std::vector<SlotTensor> slots;
  BornGradients births;
  std::shared_ptr<Buckets> buckets;          ///< null before the first synchronized backward
  std::unique_ptr<BucketConsumer> consumer;  ///< null: the end of that backward makes a plan
  int unsettled = 0;        ///< backward passes until memory is used as in all that follow
  uint64_t last_round = 0;  ///< last successful synchronized backward that used it

  int64_t bytes() const;  ///< of the gradients
};

}  // namespace farandole
