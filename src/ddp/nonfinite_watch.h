// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ddp/backward_report.h"
#include "ddp/gradient_store.h"
#include "farandole/config.h"
#include "farandole/ddp/bucket_consumer.h"

namespace farandole {

/// Looks for Inf and NaN: in gradients as they arrive, for report_nonfinite and for sharded
/// optimizers; and remembers what the bucket consumer has seen in averages, for gradient scalers.
///
/// Threads: one call at a time.
class NonfiniteWatch {
 public:
  explicit NonfiniteWatch(NonfinitePolicy policy) : policy_(policy) {}

  /// See Reducer::watch_finite().
  void watch(bool watches) { watches_ = watches; }
  /// A synchronized backward begins. Returns whether its averages are checked.
  bool begin() { return checks_averages_ = watches_; }
  bool checks_averages() const { return checks_averages_; }
  /// Whether it looks at every p.grad that arrives.
  bool reports() const { return policy_ != NonfinitePolicy::kOff; }

  /// Checks p.grad after a pass has added to it, while it is in the cache. `records`: also
  /// remembers whether a sum of as large gradients of `world_size` ranks is finite.
  void check_gradient(size_t index, ParameterGradient& parameter, bool records, int world_size);
  /// The program may have zeroed or fixed what an earlier pass has left.
  void forget_fixed(const GradientStore& gradients);
  /// The first parameter whose gradient had an Inf or NaN since the last synchronized backward; -1:
  /// none. Waits for the device of gradients that are not on the CPU.
  int64_t nonfinite();
  /// The backward is over.
  void end_backward();

  /// Gradients have changed since the averages were checked.
  void forget_averages() { averages_are_finite_.reset(); }
  /// The averages of a backward are there.
  void note_averages(const std::vector<BackwardReport>& reports, const BucketConsumer& consumer);
  /// See Reducer.
  bool has_seen_averages() const { return averages_are_finite_.has_value(); }
  std::vector<at::Tensor> unchecked_gradients(const GradientStore& gradients,
                                              bool is_sharded) const;

 private:
  const NonfinitePolicy policy_;
  bool watches_ = false;
  bool checks_averages_ = false;  ///< the same, when the current backward began
  /// Those that this rank computed in the last synchronized backward; nullopt: not all ranks have
  /// checked, or gradients have changed since.
  std::optional<bool> averages_are_finite_;
  int64_t nonfinite_ = -1;
  /// Parameters on an accelerator, and whether their gradients are finite, which nonfinite() asks.
  std::vector<std::pair<size_t, at::Tensor>> on_device_;
};

}  // namespace farandole
