// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ddp/allocation/aliased_slot.h"
#include "ddp/allocation/allocation_watch.h"

namespace farandole {

/// Learns which allocation in a backward becomes which gradient, and serves this allocation in the
/// next backward with the slot of the gradient.
///
/// Only allocations count whose size is that of a gradient, and that an autograd node makes (not
/// the program's hooks between nodes). If the allocations of a backward have the same sizes as
/// those of an earlier one, both compute the same: if the 17th became the gradient of
/// `layers.3.weight`, it will again. With the first allocation of another size (a smaller batch,
/// another graph) the backward leaves the known sequence, and no more slots are lent until it ends.
/// Its own sequence is learned in addition, as a branch of a tree.
///
/// Even with equal sizes a prediction may be wrong (a convolution computes other tensors first if
/// its batch is small). Then an AliasedSlot keeps all values correct, and the gradient is copied
/// into its slot like any other. From then on the sizes of all allocations of nodes distinguish
/// backward passes, not only those of gradients, and everything is learned again. This is not the
/// default because batches with sequences of many lengths would make a branch each. If that
/// happens, only the sizes of gradients count again, until the next wrong prediction.
///
/// Threads: any; allocations count on the thread that called begin().
class FARANDOLE_API AllocationPredictor final : public AllocationWatch {
 public:
  /// `bytes` of each parameter's gradient; 0 if it is not to be computed in its slot.
  explicit AllocationPredictor(std::vector<size_t> bytes);
  /// Whether gradients of `parameter` are to be computed in their slot.
  bool wants(size_t parameter) const { return bytes_[parameter] != 0; }
  /// The slots by parameter; null: none.
  void assign_slots(std::vector<std::shared_ptr<AliasedSlot>> slots);

  /// A backward begins on this thread, and ends.
  void begin();
  void end();
  /// The gradient of `parameter` has arrived, dense in memory, and was not computed in its slot.
  /// Does nothing outside of begin() and end().
  void learn(size_t parameter, const at::Tensor& gradient);

  at::DataPtr serve(size_t bytes) override;
  void on_served(const void* data, size_t bytes) override;

 private:
  static constexpr size_t kNone = ~size_t{0};
  /// An allocation, after all those before it in a backward.
  struct Allocation {
    size_t bytes = 0;
    size_t trail = 0;          ///< hash of all sizes up to it, if all_sizes_count_
    size_t parameter = kNone;  ///< whose gradient it became; kNone: no gradient
    std::vector<size_t> next;  ///< allocations that have followed it
  };

  bool is_seen(size_t bytes) const;
  void reset_tree();
  void advance(size_t bytes);

  const std::vector<size_t> bytes_;         ///< by parameter
  const std::unordered_set<size_t> sizes_;  ///< the same; other allocations do not count
  std::mutex mutex_;
  std::vector<std::shared_ptr<AliasedSlot>> slots_;  ///< by parameter
  bool is_running_ = false;
  std::vector<Allocation> tree_;  ///< the first node is the begin of a backward
  size_t branches_ = 0;           ///< of tree_
  bool was_wrong_ = false;        ///< a prediction was, since the tree was reset
  bool all_sizes_count_ = false;  ///< all sizes distinguish backward passes

  // The current backward.
  size_t here_ = 0;      ///< latest allocation
  bool is_new_ = false;  ///< it has left the known sequences
  size_t trail_ = 0;     ///< hash of sizes so far; 0 unless all_sizes_count_
  std::unordered_map<const void*, size_t> latest_;  ///< allocation, by address
  std::vector<size_t> allocation_of_;               ///< by parameter; kNone: not known
};

}  // namespace farandole
