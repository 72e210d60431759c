// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <mutex>

#include "comm/fork_guard.h"
#include "farandole/export.h"

namespace farandole {

/// Lends the memory of a gradient's slot to the operation that computes the gradient, so that the
/// gradient is computed in its slot and needs no copy.
///
/// The slot is in memory that ranks share. An AliasedSlot maps the pages of the slot a second time
/// and lends the addresses of this second mapping. A tensor that lives there (the gradient or,
/// after a wrong prediction, another tensor or a scratch buffer) may stay as long as it likes:
/// before other ranks store into the slot, evict() moves its contents into pages of its own, at the
/// same addresses. So a wrong prediction costs time, and no value ever changes.
///
/// Threads: any. During evict() other threads may read the tensor that lives there, but must not
/// write to it. This holds because an autograd node writes to its allocations only before it ends,
/// on the thread that evicts later.
class FARANDOLE_API AliasedSlot : public std::enable_shared_from_this<AliasedSlot> {
 public:
  /// Smaller gradients are copied into their slots, which costs no more.
  static constexpr size_t kLeastBytes = 16 << 10;
  /// What torch promises for tensors that it allocates, in bytes.
  static constexpr size_t kAlignment = 64;

  /// For the slot of `bytes` at `data`, in shared memory that `owner` keeps alive. Null if the
  /// system cannot map it twice, or if it is not aligned to `alignment`.
  static std::shared_ptr<AliasedSlot> of(void* data, size_t bytes, std::shared_ptr<void> owner,
                                         size_t alignment = kAlignment);
  ~AliasedSlot();

  size_t bytes() const { return bytes_; }
  /// Makes lend() return the slot from now on. Does nothing after several evictions with few
  /// gradients in between: then something keeps the gradients, or they are computed elsewhere.
  void open();
  /// Memory for a tensor, once between open() and evict(); empty if it is not open.
  at::DataPtr lend();
  /// Whether `tensor` owns the lent memory, and this is still the slot.
  bool holds(const at::Tensor& tensor) const;
  /// Ends lending. A tensor that lives in the slot gets its contents in pages of its own; the slot
  /// keeps them too.
  void evict();

 private:
  enum class State {
    kClosed,
    kOpen,
    kLent,     ///< a tensor lives in the slot
    kEvicted,  ///< it has pages of its own
    kLost,     ///< the system has no more mappings
  };

  AliasedSlot(std::byte* data, size_t bytes, std::shared_ptr<void> owner);
  /// The tensor was freed.
  void take_back();

  std::byte* const pages_;  ///< from the page where the slot begins
  const size_t page_bytes_;
  const size_t offset_;  ///< of the slot in its first page
  const size_t bytes_;
  const std::shared_ptr<void> owner_;
  const comm::ForkGuard fork_guard_;
  std::byte* alias_ = nullptr;  ///< pages_, mapped a second time
  mutable std::mutex mutex_;
  State state_ = State::kClosed;
  int credit_;  ///< decreased by evictions, increased by gradients; below 0 nothing is lent
};

}  // namespace farandole
