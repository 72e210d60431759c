// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ddp/birth_schedule.h"
#include "farandole/ddp/bucket.h"
#include "farandole/ddp/bucket_consumer.h"
#include "farandole/export.h"

namespace farandole {

/// What of a parameter decides where its gradient lies.
struct FARANDOLE_API ParameterKind {
  bool is_active;  ///< has requires_grad
  at::ScalarType dtype;
  at::Device device;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;

  static ParameterKind of(const at::Tensor& parameter);
  bool operator==(const ParameterKind& other) const;
};

/// Buckets for one set of active parameters, and all that a Reducer has learned about them.
struct FARANDOLE_API KeptPlan {
  std::vector<ParameterKind> parameters;
  std::shared_ptr<Buckets> buckets;
  std::unique_ptr<BucketConsumer> consumer;
  std::shared_ptr<BirthSchedule> births;                 ///< null: gradients are copied
  std::vector<std::shared_ptr<Birthplace>> birthplaces;  ///< by parameter
  std::vector<int> expected;                             ///< by parameter: gradients of a backward
  int unsettled;                                         ///< see Reducer
  uint64_t last_round;  ///< in which it was used: synchronized backward passes that went well

  int64_t bytes() const;  ///< of the gradients
};

/// The plans that are not in use, for programs that freeze and unfreeze the same parameters again
/// and again (a GAN's two steps).
///
/// They cost memory, so they leave: the one that was not used for longest where there are more than
/// kMostPlans or their gradients have more bytes than those of all parameters, and each after
/// kMostIdleRounds rounds of others. Plans come and leave in rounds that all ranks count alike, so
/// all ranks have the same. Gradients in a plan that leaves stay valid: they keep the memory.
///
/// Threads: one at a time.
class FARANDOLE_API KeptPlans {
 public:
  static constexpr size_t kMostPlans = 4;
  static constexpr uint64_t kMostIdleRounds = 256;

  /// Local; the next make_room() counts it.
  void put(KeptPlan plan);
  /// The plan of these parameters, which is in use from now on; nullopt if there is none.
  std::optional<KeptPlan> take(const std::vector<ParameterKind>& parameters);
  /// A plan was made: lets those go that are too many or have more bytes together than this.
  void make_room(int64_t most_bytes);
  /// `round` has gone well: lets those go that were not used for long.
  void forget_idle(uint64_t round);
  void clear() { plans_.clear(); }

 private:
  std::vector<KeptPlan> plans_;
};

}  // namespace farandole
