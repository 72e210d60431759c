// SPDX-License-Identifier: Apache-2.0
#include "ddp/birth_schedule.h"

#include <c10/util/hash.h>
#include <torch/csrc/autograd/function.h>

#include <utility>

namespace farandole {
namespace {

/// Batches of a few sizes and layers that are frozen in turn. Where each backward is another one,
/// the tree is planted anew.
constexpr size_t kMostBranches = 16;

}  // namespace

BirthSchedule::BirthSchedule(std::vector<size_t> bytes)
    : bytes_(std::move(bytes)),
      sizes_(bytes_.begin(), bytes_.end()),
      places_(bytes_.size()),
      tree_(1),
      allocation_of_(bytes_.size(), kNone) {
  enable_allocation_watch();
}

void BirthSchedule::settle(std::vector<std::shared_ptr<Birthplace>> places) {
  const std::lock_guard<std::mutex> lock(mutex_);
  places_ = std::move(places);
}

void BirthSchedule::begin() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (branches_ > kMostBranches || (was_wrong_ && !all_tell_)) replant();
  is_running_ = true;
  here_ = 0;
  is_new_ = false;
  trail_ = 0;
  latest_.clear();
  allocation_of_.assign(bytes_.size(), kNone);
}

void BirthSchedule::replant() {
  tree_.assign(1, {});
  branches_ = 0;
  all_tell_ = was_wrong_;
}

void BirthSchedule::end() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_running_ = false;
}

/// Whether an allocation is one of a node of autograd in a backward.
bool BirthSchedule::is_seen(size_t bytes) const {
  return is_running_ && bytes != 0 && (all_tell_ || sizes_.count(bytes) != 0) &&
         torch::autograd::get_current_node() != nullptr;
}

/// To the next allocation of this backward: one that is known, or a new one.
void BirthSchedule::advance(size_t bytes) {
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

at::DataPtr BirthSchedule::serve(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!is_seen(bytes)) return {};
  if (all_tell_) trail_ = c10::hash_combine(trail_, bytes);
  if (sizes_.count(bytes) == 0) return {};
  advance(bytes);
  const size_t parameter = tree_[here_].parameter;
  if (parameter == kNone) return {};
  was_wrong_ |= std::exchange(allocation_of_[parameter], here_) != kNone;  // it cannot be both
  const auto& place = places_[parameter];
  at::DataPtr data = place && place->bytes() == bytes ? place->lend() : at::DataPtr();
  if (data) latest_[data.get()] = here_;
  return data;
}

void BirthSchedule::on_served(const void* data, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_seen(bytes) && sizes_.count(bytes) != 0) latest_[data] = here_;
}

void BirthSchedule::learn(size_t parameter, const at::Tensor& gradient) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = latest_.find(gradient.const_data_ptr());
  const size_t allocation =
      found != latest_.end() && gradient.storage().nbytes() == tree_[found->second].bytes
          ? found->second
          : kNone;
  const size_t guessed = std::exchange(allocation_of_[parameter], allocation);
  if (guessed == allocation) return;
  if (guessed != kNone) tree_[guessed].parameter = kNone;
  size_t owner = kNone;
  if (allocation != kNone) owner = std::exchange(tree_[allocation].parameter, parameter);
  if (owner != kNone) allocation_of_[owner] = kNone;
  was_wrong_ |= guessed != kNone || owner != kNone;
}

}  // namespace farandole
