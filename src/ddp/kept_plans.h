// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ddp/allocation/allocation_predictor.h"
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

/// Buckets for one set of active parameters, and what a Reducer has learned about them.
struct FARANDOLE_API KeptPlan {
  std::vector<ParameterKind> parameters;
  std::shared_ptr<Buckets> buckets;
  std::unique_ptr<BucketConsumer> consumer;
  std::shared_ptr<AllocationPredictor> predictor;           ///< null: gradients are copied
  std::vector<std::shared_ptr<AliasedSlot>> aliased_slots;  ///< by parameter
  std::vector<int> expected;  ///< by parameter: gradients of a backward
  int unsettled;              ///< see Reducer
  uint64_t last_round;        ///< last successful synchronized backward that used it

  int64_t bytes() const;  ///< of the gradients
};

/// The plans that are not in use, for programs that freeze and unfreeze the same parameters
/// repeatedly (the two steps of a GAN).
///
/// Plans cost memory, so they are dropped: the least recently used one if there are more than
/// kMostPlans or their gradients have more bytes than those of all parameters, and each one after
/// kMostIdleRounds rounds of other plans. All ranks count rounds in the same way, so all have the
/// same plans. Gradients in a dropped plan stay valid: they keep the memory alive.
///
/// Threads: one at a time.
class FARANDOLE_API KeptPlans {
 public:
  static constexpr size_t kMostPlans = 4;
  static constexpr uint64_t kMostIdleRounds = 256;

  /// Local; the next make_room() counts it.
  void put(KeptPlan plan);
  /// Removes and returns the plan of these parameters; nullopt if there is none.
  std::optional<KeptPlan> take(const std::vector<ParameterKind>& parameters);
  /// Call after a plan was made: drops plans while there are too many or they have more bytes.
  void make_room(int64_t most_bytes);
  /// Call after the successful round `round`: drops plans that were unused for too long.
  void forget_idle(uint64_t round);
  void clear() { plans_.clear(); }

 private:
  std::vector<KeptPlan> plans_;
};

}  // namespace farandole
