// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "ddp/parameter_gradient.h"
#include "farandole/export.h"

namespace farandole {

/// Counts the gradients of parameters until each has got as many as a step takes passes.
///
/// Threads: hooks come from autograd's threads, all else from the caller's.
class FARANDOLE_API ArrivalCounter : public std::enable_shared_from_this<ArrivalCounter> {
 public:
  /// Called without a value, by a hook, when the last gradient of a step is in p.grad; with the
  /// index of a parameter when it has got one more. What it throws leaves backward.
  using Callback = std::function<void(std::optional<size_t> excess)>;

  static std::shared_ptr<ArrivalCounter> make(const std::vector<at::Tensor>& parameters,
                                              Callback callback);

  /// A step begins in which each parameter gets `passes` gradients.
  void reset(int64_t passes);
  /// Whether gradients have arrived since.
  bool has_arrivals() const;

 private:
  ArrivalCounter(const std::vector<at::Tensor>& parameters, Callback callback);

  void on_accumulated(size_t index);
  bool count(size_t index);

  const Callback callback_;
  mutable std::mutex mutex_;
  std::vector<ParameterGradient> parameters_;
  std::vector<int64_t> left_;  ///< by parameter
  int64_t all_left_ = 0;
  bool has_arrivals_ = false;
};

}  // namespace farandole
