// SPDX-License-Identifier: Apache-2.0
#include "ddp/hooked_reduction.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>

#include "comm/queued_call.h"
#include "ddp/bucket_record.h"
#include "ddp/finite_check.h"
#include "farandole/comm/events.h"
#include "farandole/ddp/comm_hook.h"
#include "farandole/error.h"
#include "farandole/process_group/collectives.h"

namespace farandole {

namespace {

/// How long to wait for the future of a hook of ours. Its collectives end at the group's timeout or
/// a little later, and their errors, which name the late rank, come first.
std::chrono::milliseconds patience_for(std::chrono::milliseconds timeout) {
  return timeout + std::max(timeout / 4, std::chrono::milliseconds(2000));
}

/// Whether the future completes within `timeout`.
bool is_done_within(c10::ivalue::Future& future, std::chrono::milliseconds timeout) {
  if (future.completed()) return true;
  struct Event {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_done = false;  // guarded by mutex
  };
  const auto event = std::make_shared<Event>();
  future.addCallback([event](c10::ivalue::Future& /*done*/) {
    const std::lock_guard lock(event->mutex);
    event->is_done = true;
    event->changed.notify_all();
  });
  std::unique_lock lock(event->mutex);
  return event->changed.wait_for(lock, timeout, [&] { return event->is_done; });
}

/// Throws if the result is shorter than the bucket. A longer result ends with padding.
void check_size(const at::Tensor& result, const at::Tensor& flat, size_t bucket) {
  if (result.numel() >= flat.numel()) return;
  throw InvalidArgument("hook-result-size",
                        "a communication hook returned " + std::to_string(result.numel()) +
                            " elements for bucket " + std::to_string(bucket) + ", which has " +
                            std::to_string(flat.numel()) + ".",
                        "the result replaces the gradients of the bucket.",
                        "return a tensor of the size of bucket.buffer().");
}

}  // namespace

HookedReduction::HookedReduction(std::shared_ptr<const Buckets> buckets,
                                 std::vector<std::vector<at::Tensor>> parameters,
                                 std::shared_ptr<ReplicaGroup> group,
                                 std::shared_ptr<c10d::CommHookInterface> hook,
                                 const Options& options)
    : buckets_(std::move(buckets)),
      parameters_(std::move(parameters)),
      group_(std::move(group)),
      hook_(std::move(hook)),
      is_foreign_(dynamic_cast<const CommHook*>(hook_.get()) == nullptr),
      options_(options),
      started_before_(buckets_->size()),
      is_skipped_(buckets_->size()),
      is_awaited_(buckets_->size()),
      has_nonfinite_(buckets_->size()),
      nonfinite_on_device_(buckets_->size()),
      futures_(buckets_->size()),
      results_(buckets_->size()),
      times_(buckets_->size()),
      reports_(*group_, has_nonfinite_.size() + options.report_bytes, options.detail_bytes) {}

void HookedReduction::begin(double weight, bool /*checks_finite*/) {
  weight_ = weight;
  launched_ = 0;
  failure_ = nullptr;
  started_at_begin_ = started();
  barriers_.clear();
  left_out_ = 0;
  std::fill(futures_.begin(), futures_.end(), nullptr);
  std::fill(results_.begin(), results_.end(), at::Tensor());
  std::fill(has_nonfinite_.begin(), has_nonfinite_.end(), uint8_t{0});
  std::fill(nonfinite_on_device_.begin(), nonfinite_on_device_.end(), at::Tensor());
  std::fill(times_.begin(), times_.end(), comm::BucketTimes{});
  std::fill(is_skipped_.begin(), is_skipped_.end(), false);
  std::fill(is_awaited_.begin(), is_awaited_.end(), false);
}

/// Our backend of the group that the hook uses, where ranks may be in step again after one of them
/// has left out a collective. Null if the group has another backend, or if all ranks know of such a
/// failure anyway.
c10::intrusive_ptr<ProcessGroupFarandole> HookedReduction::own_backend() const {
  if (options_.uses_group_apart) return nullptr;
  return ProcessGroupFarandole::of(*group_->of_program());
}

uint64_t HookedReduction::started() const { return group_->started_by_program(); }

/// Whether a peer has died, a collective has timed out or a rank has aborted. Then nothing can be
/// sent.
bool HookedReduction::is_group_over() const {
  const auto backend = backend_of_hook();
  return backend && backend->getError() != c10d::ErrorType::SUCCESS;
}

/// Of the group that the hook uses; null if it is not ours.
c10::intrusive_ptr<ProcessGroupFarandole> HookedReduction::backend_of_hook() const {
  return ProcessGroupFarandole::of(options_.uses_group_apart ? *group_->group()
                                                             : *group_->of_program());
}

/// Whether the failure was a mismatch in a group of another backend. All ranks have met it there,
/// and have left the round, so that no report can be sent.
bool HookedReduction::all_ranks_know() const {
  if (own_backend()) return false;
  try {
    std::rethrow_exception(failure_);
  } catch (const MismatchError&) {
    return true;
  } catch (...) {
    return false;
  }
}

void HookedReduction::launch(size_t bucket) {
  times_[bucket].published_ns = comm::now_ns();
  launched_ = bucket + 1;
  if (!hook_) return;
  const c10::NoGradGuard no_grad;
  const std::shared_ptr<void> record = record_bucket_reduction(*buckets_, bucket);
  if (is_foreign_) {
    for (size_t before = bucket; before-- > 0;) {  // one at a time; some may be skipped
      if (futures_[before]) {
        await(before);
        break;
      }
    }
    look_for_nonfinite(bucket);
  }
  run_hook(bucket);
}

/// The host does not wait for accelerators.
void HookedReduction::look_for_nonfinite(size_t bucket) {
  const at::Tensor flat = buckets_->flat(bucket);
  if (flat.is_cpu()) {
    has_nonfinite_[bucket] = is_finite(flat) ? 0 : 1;
  } else {
    nonfinite_on_device_[bucket] = at::isfinite(flat).all().logical_not().to(at::kFloat);
  }
}

void HookedReduction::skip(size_t bucket) {
  launched_ = bucket + 1;
  is_skipped_[bucket] = true;
}

/// Calls the hook. If it throws before it has started its collective, it is called again, because
/// the peers wait in that collective.
void HookedReduction::run_hook(size_t bucket) {
  started_before_[bucket] = started();
  c10d::GradBucket view = bucket_for_hook(bucket);
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      futures_[bucket] = hook_->runHook(view);
      return;
    } catch (...) {
      if (is_group_over()) throw;
      note_failure(bucket, std::current_exception());
      if (started() != started_before_[bucket]) return;
    }
  }
  start_barrier();
}

/// Waits until the future of a bucket is complete, and keeps its result or error. A future of an
/// accelerator is complete when its work is enqueued.
void HookedReduction::await(size_t bucket) {
  const auto& future = futures_[bucket];
  if (!future || is_awaited_[bucket]) return;
  is_awaited_[bucket] = true;
  try {
    const auto timeout = group_->timeout();
    const auto patience = is_foreign_ ? timeout : patience_for(timeout);
    std::optional<comm::QueuedCall::Wait> wait;
    if (!is_foreign_ && !future->completed()) {
      // This thread does nothing else before all buckets are there.
      const auto backend = backend_of_hook();
      if (backend) wait.emplace(backend->name(), backend->getSequenceNumberForGroup());
    }
    if (!is_done_within(*future, patience)) throw_never_completed(bucket);
    // An exception that Python has set is a value, not a tensor: parsing throws it.
    results_[bucket] = hook_->parseHookResult(future->value());
  } catch (...) {
    note_failure(bucket, std::current_exception());
    if (!is_group_over() && started() == started_before_[bucket]) start_barrier();
  }
}

void HookedReduction::throw_never_completed(size_t bucket) const {
  const std::string milliseconds = std::to_string(group_->timeout().count());
  throw TimeoutError("hook-timeout",
                     "the communication hook's future for bucket " + std::to_string(bucket) +
                         " of " + std::to_string(buckets_->size()) + " in group '" +
                         group_->name() + "' on rank " + std::to_string(group_->rank()) + " of " +
                         std::to_string(group_->world_size()) + " reached its timeout of " +
                         milliseconds + " ms.",
                     "it was never completed, and no collective of this rank's group has failed.",
                     "complete the future that the hook returns, with a result or an exception.");
}

void HookedReduction::note_failure(size_t bucket, std::exception_ptr error) {
  if (failure_) return;
  failure_ = std::move(error);
  failed_bucket_ = bucket;
}

/// Whether the peers' collectives cannot be ended by another one of this rank.
bool HookedReduction::are_uncompared() const {
  return group_->has_uncompared(buckets_->flat(0).device().type());
}

/// Starts a barrier in place of a collective that this rank should have started. Does nothing over
/// other backends, nor where collectives are not compared: there make_up() ends the group.
void HookedReduction::start_barrier() {
  const auto backend = own_backend();
  if (!backend || are_uncompared()) return;
  ++left_out_;
  c10d::BarrierOptions options;
  options.asyncOp = true;
  barriers_.push_back(backend->barrier(options));
}

/// Starts as many collectives as the rank that has started the most, so that the group can be used
/// again after a failure. Where they are not compared, those of the peers would never end, or meet
/// another one of this rank, so the group ends.
void HookedReduction::make_up() {
  uint64_t most = 0;
  for (int rank = 0; rank < group_->world_size(); ++rank) {
    most = std::max(most, reports_.head(rank).started);
  }
  const uint64_t own = reports_.head(group_->rank()).started;
  if (own < most && own_backend() && are_uncompared()) return own_backend()->abort();
  for (uint64_t i = own; i < most; ++i) start_barrier();
  for (const auto& barrier : std::exchange(barriers_, {})) {
    try {
      barrier->wait();
    } catch (const MismatchError&) {  // expected: a peer was in another collective
    }
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

/// Waits for a bucket and moves the hook's result into it.
void HookedReduction::collect(size_t bucket) {
  if (!futures_[bucket]) return;  // skipped, the hook threw, or there is no hook
  const std::shared_ptr<void> record = record_bucket_reduction(*buckets_, bucket);
  await(bucket);
  join_stream(bucket);  // also beside a failure: the bucket is written to again
  if (failure_) return;
  try {
    const at::Tensor result = std::exchange(results_[bucket], at::Tensor());
    times_[bucket].reduced_ns = comm::now_ns();
    if (options_.result == Result::kElsewhere) return;
    const at::Tensor flat = buckets_->flat(bucket);
    check_size(result, flat, bucket);
    if (result.const_data_ptr() != flat.const_data_ptr()) {
      flat.copy_(result.reshape({-1}).slice(0, 0, flat.numel()));
    }
  } catch (...) {  // the result has another size
    note_failure(bucket, std::current_exception());
  }
}

/// Launches the remaining buckets as well: the peers have launched theirs, and wait in the
/// collectives.
void HookedReduction::launch_rest() {
  while (launched_ < buckets_->size()) launch(launched_);
}

void HookedReduction::join_streams() noexcept {
  for (size_t bucket = 0; bucket < futures_.size(); ++bucket) {
    try {
      join_stream(bucket);
    } catch (const std::exception&) {  // the device has failed
    }
  }
}

/// Makes the current stream wait for what has been enqueued. The host waits for nothing.
void HookedReduction::join_stream(size_t bucket) const {
  const auto& future = futures_[bucket];
  if (future && future->completed()) future->wait();
}

/// Waits for every bucket before it sends the report, so that nothing is stored into a bucket
/// afterwards.
bool HookedReduction::finish(const RankReport& report, bool complete) {
  const c10::NoGradGuard no_grad;
  for (size_t bucket = 0; bucket < buckets_->size(); ++bucket) collect(bucket);
  if (failure_ && (is_group_over() || all_ranks_know())) std::rethrow_exception(failure_);
  try {
    exchange(report, complete && !failure_);
  } catch (...) {
    if (failure_) std::rethrow_exception(failure_);
    throw;
  }
  if (reports_.any([](const Head& each) { return each.failed != 0; })) make_up();
  if (reports_.any([](const Head& each) { return each.complete == 0; })) return false;
  if (options_.result == Result::kAverages) {
    divide_by_weights();
    poison();
  }
  return true;
}

/// Fills buckets with NaN in which any rank had an Inf or NaN, because the hook may have lost it.
void HookedReduction::poison() {
  for (size_t bucket = 0; bucket < buckets_->size(); ++bucket) {
    for (int rank = 0; rank < group_->world_size(); ++rank) {
      if (reports_.tail(rank)[bucket] == std::byte{0}) continue;
      buckets_->flat(bucket).fill_(std::numeric_limits<double>::quiet_NaN());
      break;
    }
  }
  poison_on_device();
}

/// What ranks have seen stays on their accelerators, so that the host need not wait for them.
void HookedReduction::poison_on_device() {
  std::vector<size_t> buckets;
  std::vector<at::Tensor> own;
  for (size_t bucket = 0; bucket < buckets_->size(); ++bucket) {
    if (!nonfinite_on_device_[bucket].defined()) continue;
    buckets.push_back(bucket);
    const at::Tensor& flag = nonfinite_on_device_[bucket];
    own.push_back(own.empty() ? flag : flag.to(own.front().device()));
  }
  if (buckets.empty()) return;
  at::Tensor seen = at::stack(own);
  all_reduce(seen, {c10d::ReduceOp::MAX, group_->group()});
  seen = seen.gt(0);
  for (size_t i = 0; i < buckets.size(); ++i) {
    const at::Tensor flat = buckets_->flat(buckets[i]);
    flat.masked_fill_(seen[static_cast<int64_t>(i)].to(flat.device()),
                      std::numeric_limits<double>::quiet_NaN());
  }
}

void HookedReduction::exchange(const RankReport& report, bool complete) {
  std::byte* const tail =
      reports_.write({complete ? 1U : 0U, weight_, failure_ ? failed_bucket_ + 1 : 0U, left_out_,
                      started() - started_at_begin_});
  const size_t flags = has_nonfinite_.size();
  if (flags != 0) std::memcpy(tail, has_nonfinite_.data(), flags);
  std::memcpy(tail + flags, report.data(), report.size());
  // Hooks of torch's interface may wait for a future until the timeout, and report that then.
  const bool waits_longer = is_foreign_ && own_backend();
  reports_.exchange_in_order(waits_longer ? std::make_optional(group_->timeout() * 5 / 4)
                                          : std::nullopt);
}

std::optional<size_t> HookedReduction::failed_bucket_of(int rank) const {
  const bool some_left_out = reports_.any([](const Head& each) { return each.left_out != 0; });
  if (some_left_out && reports_.head(rank).left_out == 0) return std::nullopt;  // because of that
  const uint64_t failed = reports_.head(rank).failed;
  return failed == 0 ? std::nullopt : std::make_optional(static_cast<size_t>(failed - 1));
}

std::exception_ptr HookedReduction::failure() const {
  return failed_bucket_of(group_->rank()) ? failure_ : nullptr;
}

const std::byte* HookedReduction::report_of(int rank) const {
  return reports_.tail(rank) + has_nonfinite_.size();
}

/// Turns sum / world_size, which the buckets hold, into sum / sum(weights).
void HookedReduction::divide_by_weights() {
  double sum = 0;
  for (int rank = 0; rank < group_->world_size(); ++rank) sum += reports_.head(rank).weight;
  const double factor = group_->world_size() / (sum == 0 ? 1 : sum);
  if (factor == 1) return;
  for (size_t bucket = 0; bucket < buckets_->size(); ++bucket) {
    if (!is_skipped_[bucket]) buckets_->flat(bucket).mul_(factor);
  }
}

}  // namespace farandole
