// SPDX-License-Identifier: Apache-2.0
#include "ddp/allocation/allocation_predictor.h"

#include <c10/util/hash.h>
#include <torch/csrc/autograd/function.h>

#include <utility>

namespace farandole {
namespace {

/// Enough for batches of a few sizes and layers that are frozen in turn. With more branches the
/// tree is reset.
constexpr size_t kMostBranches = 16;

}  // namespace

AllocationPredictor::AllocationPredictor(std::vector<size_t> bytes)
    : bytes_(std::move(bytes)),
      sizes_(bytes_.begin(), bytes_.end()),
      slots_(bytes_.size()),
      tree_(1),
      allocation_of_(bytes_.size(), kNone) {
  enable_allocation_watch();
}

void AllocationPredictor::assign_slots(std::vector<std::shared_ptr<AliasedSlot>> slots) {
  const std::lock_guard<std::mutex> lock(mutex_);
  slots_ = std::move(slots);
}

void AllocationPredictor::begin() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (branches_ > kMostBranches || (was_wrong_ && !all_sizes_count_)) reset_tree();
  is_running_ = true;
  here_ = 0;
  is_new_ = false;
  trail_ = 0;
  latest_.clear();
  allocation_of_.assign(bytes_.size(), kNone);
}

/// If all sizes counted and there are too many branches, only the sizes of gradients count again.
void AllocationPredictor::reset_tree() {
  tree_.assign(1, {});
  branches_ = 0;
  all_sizes_count_ = std::exchange(was_wrong_, false) && !all_sizes_count_;
}

void AllocationPredictor::end() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_running_ = false;
}

/// Whether an allocation counts: made by an autograd node in a backward.
bool AllocationPredictor::is_seen(size_t bytes) const {
  return is_running_ && bytes != 0 && (all_sizes_count_ || sizes_.count(bytes) != 0) &&
         torch::autograd::get_current_node() != nullptr;
}

/// Moves to the next allocation of this backward, a known or a new one.
void AllocationPredictor::advance(size_t bytes) {
  for (const size_t next : tree_[here_].next) {
    if (tree_[next].bytes != bytes || tree_[next].trail != trail_) continue;
    here_ = next;
    return;
  }
  if (!std::exchange(is_new_, true)) ++branches_;
  tree_[here_].next.push_back(tree_.size());
  here_ = tree_.size();
  tree_.push_back({bytes, trail_, kNone, {}});
}

at::DataPtr AllocationPredictor::serve(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!is_seen(bytes)) return {};
  if (all_sizes_count_) trail_ = c10::hash_combine(trail_, bytes);
  if (sizes_.count(bytes) == 0) return {};
  advance(bytes);
  const size_t parameter = tree_[here_].parameter;
  if (parameter == kNone) return {};
  was_wrong_ |= std::exchange(allocation_of_[parameter], here_) != kNone;  // it cannot be both
  const auto& slot = slots_[parameter];
  at::DataPtr data = slot && slot->bytes() == bytes ? slot->lend() : at::DataPtr();
  if (data) latest_[data.get()] = here_;
  return data;
}

void AllocationPredictor::on_served(const void* data, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_seen(bytes) && sizes_.count(bytes) != 0) latest_[data] = here_;
}

void AllocationPredictor::learn(size_t parameter, const at::Tensor& gradient) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!is_running_) return;  // a pass of no_sync(): its allocations were not seen
  const auto found = latest_.find(gradient.const_data_ptr());
  const size_t allocation =
      found != latest_.end() && gradient.storage().nbytes() == tree_[found->second].bytes
          ? found->second
          : kNone;
  const size_t predicted = std::exchange(allocation_of_[parameter], allocation);
  if (predicted == allocation) return;
  if (predicted != kNone) tree_[predicted].parameter = kNone;
  size_t owner = kNone;
  if (allocation != kNone) owner = std::exchange(tree_[allocation].parameter, parameter);
  if (owner != kNone) allocation_of_[owner] = kNone;
  was_wrong_ |= predicted != kNone || owner != kNone;
}

}  // namespace farandole
