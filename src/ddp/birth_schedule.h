// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ddp/allocation_watch.h"
#include "ddp/birthplace.h"

namespace farandole {

/// Learns which of the allocations in a backward becomes which gradient, and lends those the places
/// of the gradients in the next one.
///
/// A backward does the same from step to step: what was the 17th allocation of a size that
/// gradients have, and became the gradient of `layers.3.weight`, will again. Where that fails, a
/// gradient is copied into its place as any other, and the schedule is learned anew from there.
///
/// Threads: any; the thread of begin() is the one whose allocations count.
class BirthSchedule final : public AllocationWatch {
 public:
  /// `bytes`: of each parameter's gradient; 0 for those that are not born in their place.
  explicit BirthSchedule(std::vector<size_t> bytes);
  /// Whether gradients of `parameter` are to be born in their place.
  bool wants(size_t parameter) const { return bytes_[parameter] != 0; }
  /// The places, by parameter; null: none.
  void settle(std::vector<std::shared_ptr<Birthplace>> places);

  /// A backward begins on this thread, and ends.
  void begin();
  void end();
  /// The gradient of `parameter` came, dense in memory, and was not born in its place.
  void learn(size_t parameter, const at::Tensor& gradient);

  at::DataPtr serve(size_t bytes) override;
  void on_served(const void* data, size_t bytes) override;

 private:
  static constexpr size_t kNone = ~size_t{0};
  bool counts(size_t bytes) const { return is_running_ && bytes != 0 && sizes_.count(bytes) != 0; }

  const std::vector<size_t> bytes_;         ///< by parameter
  const std::unordered_set<size_t> sizes_;  ///< the same; other allocations do not count
  std::mutex mutex_;
  std::vector<std::shared_ptr<Birthplace>> places_;  ///< by parameter
  bool is_running_ = false;
  size_t next_ = 0;                                 ///< allocation of this backward
  std::unordered_map<const void*, size_t> latest_;  ///< allocation, by address
  std::vector<size_t> parameter_of_;                ///< by allocation; kNone: not a gradient
  std::vector<size_t> allocation_of_;               ///< by parameter; kNone: not known
};

}  // namespace farandole
