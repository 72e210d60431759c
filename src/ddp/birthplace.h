// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <mutex>

#include "comm/fork_guard.h"
#include "farandole/export.h"

namespace farandole {

/// Lends the place of a gradient to the operation that computes it, so that the gradient is born
/// there and nothing is left to copy.
///
/// The place lies in memory that ranks share; a Birthplace maps its pages a second time and lends
/// those addresses. Whatever comes to live there, a gradient or, after a wrong guess, another
/// tensor or a scratch pad, may stay as long as it likes: before others store into the place,
/// evict() moves its contents into pages of its own, at the same addresses. So a wrong guess costs
/// time and no value ever changes.
///
/// Threads: any. During evict() others may read what lives there, and must not write to it: a node
/// of autograd writes to what it has allocated before it ends, on the thread that evicts later.
class FARANDOLE_API Birthplace : public std::enable_shared_from_this<Birthplace> {
 public:
  /// The place of `bytes` at `data`, in shared memory that `owner` keeps. Null if the system does
  /// not map it twice.
  static std::shared_ptr<Birthplace> of(void* data, size_t bytes, std::shared_ptr<void> owner);
  ~Birthplace();

  size_t bytes() const { return bytes_; }
  /// From now on, what lend() gives away is the place. Not after a few evictions, if there are few
  /// births between them: then somebody keeps the gradients, or they are computed elsewhere.
  void open();
  /// Memory for a tensor, once between open() and evict(); none if it is not open.
  at::DataPtr lend();
  /// Whether `tensor` owns what was lent, and that is the place.
  bool holds(const at::Tensor& tensor) const;
  /// Ends lending; what lives in the place keeps its contents in pages of its own. The place keeps
  /// them too.
  void evict();

 private:
  enum class State {
    kClosed,
    kOpen,
    kLent,     ///< a tensor lives there
    kEvicted,  ///< it has pages of its own
    kLost,     ///< the system has no more mappings for us
  };

  Birthplace(std::byte* data, size_t bytes, std::shared_ptr<void> owner);
  /// The tensor is gone.
  void take_back();

  std::byte* const pages_;  ///< from the page where the place begins
  const size_t page_bytes_;
  const size_t offset_;  ///< of the place in its first page
  const size_t bytes_;
  const std::shared_ptr<void> owner_;
  const comm::ForkGuard fork_guard_;
  std::byte* alias_ = nullptr;  ///< pages_, mapped a second time
  mutable std::mutex mutex_;
  State state_ = State::kClosed;
  int credit_;  ///< evictions cost some, births earn some; below 0 nothing is lent
};

}  // namespace farandole
