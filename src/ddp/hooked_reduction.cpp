// SPDX-License-Identifier: Apache-2.0
#include "ddp/hooked_reduction.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <utility>

#include "ddp/finite_check.h"
#include "farandole/comm/events.h"
#include "farandole/ddp/comm_hook.h"

namespace farandole {

/// What goes before a note, and before a byte for each bucket: has_nonfinite_.
struct HookedReduction::Head {
  uint64_t complete;
  double weight;
};

HookedReduction::HookedReduction(std::shared_ptr<const Buckets> buckets,
                                 std::vector<std::vector<at::Tensor>> parameters,
                                 std::shared_ptr<ReplicaGroup> group,
                                 std::shared_ptr<c10d::CommHookInterface> hook, Result result,
                                 size_t note_bytes)
    : buckets_(std::move(buckets)),
      parameters_(std::move(parameters)),
      group_(std::move(group)),
      hook_(std::move(hook)),
      is_foreign_(dynamic_cast<const CommHook*>(hook_.get()) == nullptr),
      result_(result),
      note_bytes_(note_bytes),
      has_nonfinite_(buckets_->size()),
      futures_(buckets_->size()),
      times_(buckets_->size()) {}

void HookedReduction::begin(double weight, bool /*looks*/) {
  weight_ = weight;
  launched_ = 0;
  failed_.reset();
  std::fill(futures_.begin(), futures_.end(), nullptr);
  std::fill(has_nonfinite_.begin(), has_nonfinite_.end(), uint8_t{0});
  std::fill(times_.begin(), times_.end(), comm::BucketTimes{});
}

void HookedReduction::launch(size_t bucket) {
  times_[bucket].published_ns = comm::now_ns();
  launched_ = bucket + 1;
  if (!hook_) return;
  const c10::NoGradGuard no_grad;
  if (is_foreign_) {
    if (bucket > 0 && futures_[bucket - 1]) futures_[bucket - 1]->wait();
    has_nonfinite_[bucket] = is_finite(buckets_->flat(bucket)) ? 0 : 1;
  }
  c10d::GradBucket view = bucket_for_hook(bucket);
  try {
    futures_[bucket] = hook_->runHook(view);
  } catch (...) {
    failed_ = bucket;
    throw;
  }
}

c10d::GradBucket HookedReduction::bucket_for_hook(size_t bucket) const {
  const auto& slots = buckets_->plan().buckets[bucket].slots;
  std::vector<size_t> offsets;
  std::vector<size_t> lengths;
  std::vector<c10::IntArrayRef> sizes;
  for (size_t i = 0; i < slots.size(); ++i) {
    offsets.push_back(static_cast<size_t>(slots[i].offset));
    lengths.push_back(static_cast<size_t>(slots[i].elements));
    sizes.push_back(parameters_[bucket][i].sizes());
  }
  return c10d::GradBucket(bucket, buckets_->size(), buckets_->resizable(bucket), std::move(offsets),
                          std::move(lengths), std::move(sizes), parameters_[bucket], std::nullopt);
}

/// Waits for a bucket and brings the hook's result home.
void HookedReduction::collect(size_t bucket) {
  if (!futures_[bucket]) return;  // the hook threw, or there is none
  futures_[bucket]->waitAndThrow();
  const at::Tensor result = hook_->parseHookResult(futures_[bucket]->value());
  times_[bucket].reduced_ns = comm::now_ns();
  if (result_ == Result::kElsewhere) return;
  const at::Tensor flat = buckets_->flat(bucket);
  if (result.const_data_ptr() != flat.const_data_ptr()) {
    flat.copy_(result.reshape({-1}).slice(0, 0, flat.numel()));
  }
}

/// Waits for every bucket, so that nothing is stored into one any more, and then throws the first
/// error.
void HookedReduction::collect_all() {
  std::exception_ptr error;
  for (size_t bucket = 0; bucket < buckets_->size(); ++bucket) {
    try {
      collect(bucket);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

/// Peers have launched theirs: all take part in all, or some would wait for ever. They wait in what
/// a hook that threw did not start, so it is called once more.
void HookedReduction::launch_rest() {
  if (const auto failed = std::exchange(failed_, std::nullopt)) {
    try {
      launch(*failed);
    } catch (...) {  // the program has got the first error
      failed_.reset();
    }
  }
  while (launched_ < buckets_->size()) launch(launched_);
}

bool HookedReduction::finish(const Note& note, bool complete) {
  const c10::NoGradGuard no_grad;
  collect_all();
  messages_ = exchange(note, complete);
  for (int rank = 0; rank < group_->world_size(); ++rank) {
    if (head_of(rank).complete == 0) return false;
  }
  if (result_ == Result::kAverages) {
    divide_by_weights();
    poison();
  }
  return true;
}

/// An Inf or NaN of one rank is one on every rank, whatever the hook made of it.
void HookedReduction::poison() {
  for (size_t bucket = 0; bucket < buckets_->size(); ++bucket) {
    for (int rank = 0; rank < group_->world_size(); ++rank) {
      if (message_of(rank)[sizeof(Head) + bucket] == std::byte{0}) continue;
      buckets_->flat(bucket).fill_(std::numeric_limits<double>::quiet_NaN());
      break;
    }
  }
}

Note HookedReduction::exchange(const Note& note, bool complete) const {
  const Head head{complete ? 1U : 0U, weight_};
  const size_t flags = has_nonfinite_.size();
  Note message(sizeof(head) + flags + note.size());
  std::memcpy(message.data(), &head, sizeof(head));
  if (flags != 0) std::memcpy(message.data() + sizeof(head), has_nonfinite_.data(), flags);
  std::memcpy(message.data() + sizeof(head) + flags, note.data(), note.size());
  return group_->all_gather(message);
}

const std::byte* HookedReduction::message_of(int rank) const {
  return messages_.data() +
         static_cast<size_t>(rank) * (sizeof(Head) + has_nonfinite_.size() + note_bytes_);
}

HookedReduction::Head HookedReduction::head_of(int rank) const {
  Head head;
  std::memcpy(&head, message_of(rank), sizeof(head));
  return head;
}

const std::byte* HookedReduction::note_of(int rank) const {
  return message_of(rank) + sizeof(Head) + has_nonfinite_.size();
}

/// Buckets hold sum / world_size and shall hold sum / sum(weights).
void HookedReduction::divide_by_weights() {
  double sum = 0;
  for (int rank = 0; rank < group_->world_size(); ++rank) sum += head_of(rank).weight;
  const double factor = group_->world_size() / (sum == 0 ? 1 : sum);
  if (factor == 1) return;
  for (size_t bucket = 0; bucket < buckets_->size(); ++bucket) buckets_->flat(bucket).mul_(factor);
}

}  // namespace farandole
