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
/// What counts are allocations of sizes that gradients have, made by nodes of autograd: not those
/// of the program's hooks between them. A backward whose allocations have the sizes of one before
/// does the same as that one: what was its 17th and became the gradient of `layers.3.weight` will
/// again. With the first allocation of another size (a smaller batch, another graph) it leaves
/// what is known, and nothing more is lent until it ends; what it does is learned beside the rest,
/// as a branch of a tree.
///
/// Where sizes are equal and the guess is wrong all the same (a convolution computes other tensors
/// first when its batch is small), a Birthplace keeps values right, and the gradient is copied into
/// its place as any other. From then on the sizes of all that nodes allocate tell backwards apart,
/// not those of gradients alone; what is known is learned anew. Not from the start: where batches
/// have sequences of any length, each would be a branch of its own.
///
/// Threads: any; the thread of begin() is the one whose allocations count.
class FARANDOLE_API BirthSchedule final : public AllocationWatch {
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
  /// An allocation, after all those before it in a backward.
  struct Allocation {
    size_t bytes = 0;
    size_t trail = 0;          ///< hash of the sizes up to it, if all of them tell
    size_t parameter = kNone;  ///< whose gradient it became; kNone: no gradient's
    std::vector<size_t> next;  ///< that have followed it
  };

  bool is_seen(size_t bytes) const;
  void replant();
  void advance(size_t bytes);

  const std::vector<size_t> bytes_;         ///< by parameter
  const std::unordered_set<size_t> sizes_;  ///< the same; other allocations do not count
  std::mutex mutex_;
  std::vector<std::shared_ptr<Birthplace>> places_;  ///< by parameter
  bool is_running_ = false;
  std::vector<Allocation> tree_;  ///< the first stands for the begin of a backward
  size_t branches_ = 0;           ///< of tree_
  bool was_wrong_ = false;        ///< a guess, in some backward
  bool all_tell_ = false;         ///< sizes of other allocations too

  // The present backward.
  size_t here_ = 0;                                 ///< latest allocation
  bool is_new_ = false;                             ///< it was in none before
  size_t trail_ = 0;                                ///< hash of sizes so far; 0 unless all tell
  std::unordered_map<const void*, size_t> latest_;  ///< allocation, by address
  std::vector<size_t> allocation_of_;               ///< by parameter; kNone: not known
};

}  // namespace farandole
