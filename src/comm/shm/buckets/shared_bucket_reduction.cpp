// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/buckets/shared_bucket_reduction.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <sstream>
#include <string>
#include <utility>

#include "comm/arguments.h"
#include "comm/shm/buckets/bucket_layout.h"
#include "farandole/comm/events.h"
#include "farandole/error.h"
#include "kernels/finite_kernels.h"
#include "kernels/reduce_kernels.h"

namespace farandole::comm::shm {
namespace {

/// Elements that are averaged and then looked at while they are in the cache.
constexpr size_t kCheckedAtOnce = 4096;

/// What must be the same on all ranks beside the signature.
struct Plan {
  Fingerprint fingerprint;
  uint64_t report_bytes;
};
static_assert(sizeof(Plan) <= kInlineBytes);

void check_memory(const SharedMemoryCommunicator& group, const SymmetricMemory* memory) {
  if (memory != nullptr && group.find_symmetric(memory->local(), 0).get() == memory) return;
  throw InvalidArgument(
      "bucket-memory",
      "make_bucket_reduction was called with memory that is not of group '" + group.name() + "'.",
      "ranks of a group map only memory that its allocate_symmetric() has returned.",
      "pass memory from allocate_symmetric() of this group.");
}

void check_plan_of(const SharedMemoryCommunicator& group, int rank, const std::byte* theirs,
                   const std::byte* of_rank_0) {
  if (std::memcmp(theirs, of_rank_0, sizeof(Plan)) == 0) return;
  throw MismatchError(
      "different-buckets",
      "make_bucket_reduction in group '" + group.name() + "': " + group.topology().name_of(0) +
          " and " + group.topology().name_of(rank) +
          " passed different buckets or sizes of reports.",
      "each rank reduces its shard of a bucket for all ranks, at the same place in memory.",
      "make buckets of the same sizes in the same order on every rank.",
      group.topology().fault_of({rank}, "make_bucket_reduction"));
}

void check_weight(double weight) {
  if (std::isfinite(weight) && weight >= 0) return;
  std::ostringstream text;
  text << weight;
  throw InvalidArgument(
      "bucket-weight", "begin() was called with the weight " + text.str() + ".",
      "sums are divided by the sum of the weights, each of which must be at least 0.",
      "pass 1 for a plain average, 0 for a rank that contributes nothing.");
}

void check_report(const void* report, size_t bytes) {
  if (report != nullptr || bytes == 0) return;
  throw InvalidArgument(
      "report-missing", "finish() was called without a report.",
      "the reduction was made for reports of " + std::to_string(bytes) + " bytes.",
      "pass a pointer to that many bytes.");
}

}  // namespace

std::shared_ptr<BucketReduction> SharedBucketReduction::make(
    SharedMemoryCommunicator& group, std::shared_ptr<SymmetricMemory> memory,
    const std::vector<BucketRange>& ranges, size_t report_bytes) {
  Call call = group.begin(OpKind::kBucketReduction, ranges.size(), DataType::kUInt8, {});
  check_memory(group, memory.get());
  check_buckets(ranges, memory->bytes(), group.world_size());
  call.signature.root = static_cast<int32_t>(memory->number());
  const Plan plan{fingerprint_of(ranges), report_bytes};
  group.enter(call, &plan, sizeof(plan));
  for (int rank = 1; rank < group.world_size(); ++rank) {
    check_plan_of(group, rank, group.lockstep_.inline_data_of(rank),
                  group.lockstep_.inline_data_of(0));
  }
  group.finish(call, 0);
  ReadyFlags flags(group.allocate_symmetric(ReadyFlags::part_bytes(ranges.size(), report_bytes)),
                   group.world_size(), ranges.size(), report_bytes);
  return std::make_shared<SharedBucketReduction>(group, std::move(memory), ranges, std::move(flags),
                                                 report_bytes);
}

SharedBucketReduction::SharedBucketReduction(SharedMemoryCommunicator& group,
                                             std::shared_ptr<SymmetricMemory> memory,
                                             const std::vector<BucketRange>& ranges,
                                             ReadyFlags flags, size_t report_bytes)
    : group_(group),
      memory_(std::move(memory)),
      flags_(std::move(flags)),
      report_bytes_(report_bytes),
      bytes_(bytes_of(ranges)),
      counters_(static_cast<size_t>(group.world_size())),
      advance_([this] {
        advance();
        return reduced_ + skipped_ < buckets_.size();
      }) {
  for (int peer = 0; peer < group.world_size(); ++peer) {
    buffers_.push_back(static_cast<std::byte*>(memory_->peer(peer)));
  }
  for (const BucketRange& range : ranges) {
    Bucket bucket{};
    bucket.shard_count = range.count / static_cast<size_t>(group.world_size());
    bucket.shard_offset = range.offset_bytes + static_cast<size_t>(group.rank()) *
                                                   bucket.shard_count * size_of(range.dtype);
    bucket.dtype = range.dtype;
    buckets_.push_back(bucket);
  }
  ready_.reserve(buckets_.size());
}

uint64_t SharedBucketReduction::round_of_all() const {
  return finished_ + group_.lockstep_.mismatches() + 1;
}

void SharedBucketReduction::begin(double weight, bool checks_finite) {
  // The error that ended the group comes again; a round that it has cut off stays open.
  group_.lockstep_.check_usable();
  check_weight(weight);
  if (in_round()) {
    throw InvalidArgument("bucket-round-open", "begin() was called in the middle of a round.",
                          "the previous round has not ended.",
                          "call finish() first; with complete=false it abandons the round.");
  }
  round_ = round_of_all();
  begun_ = true;
  published_ = 0;
  reduced_ = skipped_ = 0;
  divisor_ = 0;
  checks_finite_ = checks_finite;
  are_finite_ = true;
  ready_.clear();
  for (uint64_t& counter : counters_) counter = ReadyFlags::counter(round_, 0);
  for (Bucket& bucket : buckets_) {
    bucket.is_published = false;
    bucket.ranks = 0;
    bucket.published_ticks = bucket.complete_ticks = bucket.reduced_ticks = 0;
  }
  flags_.set_weight(group_.rank(), weight);
}

/// The bucket, which this rank has neither published nor skipped in this round.
SharedBucketReduction::Bucket& SharedBucketReduction::claim(const char* call, size_t index) {
  check_in_round(call);
  check_bucket(call, index);
  Bucket& bucket = buckets_[index];
  if (bucket.is_published) {
    throw InvalidArgument(
        "bucket-published-twice",
        std::string(call) + "() was called with bucket " + std::to_string(index) + " again.",
        "it was already published or skipped in this round, and peers may have written to it.",
        "publish or skip each bucket once between begin() and finish().");
  }
  bucket.is_published = true;
  return bucket;
}

void SharedBucketReduction::skip(size_t index) {
  group_.lockstep_.check_in_creator();
  claim("skip", index);
  ++skipped_;
}

void SharedBucketReduction::publish(size_t index) {
  group_.lockstep_.check_in_creator();
  Bucket& bucket = claim("publish", index);
  bucket.published_ticks = event_ticks();
  flags_.publish(group_.rank(), round_, published_++, index);
  count_publication(index);
  advance();
}

void SharedBucketReduction::progress() {
  group_.lockstep_.check_in_creator();
  if (in_round()) advance();
}

/// Reads the counters of the peers, and reduces the buckets that have become ready.
void SharedBucketReduction::advance() {
  for (int peer = 0; peer < group_.world_size(); ++peer) {
    if (peer == group_.rank()) continue;
    const uint64_t counter = flags_.counter_of(peer);
    if (counter != counters_[static_cast<size_t>(peer)]) take_counter(peer, counter);
  }
  if (!ready_.empty()) reduce_ready();
}

void SharedBucketReduction::take_counter(int peer, uint64_t counter) {
  if (!ReadyFlags::is_of_round(counter, round_)) return;
  uint64_t& known = counters_[static_cast<size_t>(peer)];
  const size_t publications = ReadyFlags::publications_in(counter);
  for (size_t i = ReadyFlags::publications_in(known); i < publications; ++i) {
    count_publication(flags_.bucket_of(peer, i));
  }
  known = counter;
}

void SharedBucketReduction::count_publication(size_t index) {
  Bucket& bucket = buckets_[index];
  if (++bucket.ranks < group_.world_size()) return;
  bucket.complete_ticks = event_ticks();
  ready_.push_back(index);
}

/// Nothing if another thread of this rank has met a mismatch since the round began.
void SharedBucketReduction::reduce_ready() {
  const auto held = group_.lockstep_.hold_off_mismatch();
  if (round_ != round_of_all()) return;
  for (const size_t index : ready_) {
    const std::shared_ptr<void> record = recorder_ ? recorder_(index) : nullptr;
    reduce(buckets_[index]);
    buckets_[index].reduced_ticks = event_ticks();
  }
  reduced_ += ready_.size();
  ready_.clear();
}

/// 2 * S bytes read or written by each rank, as in a symmetric all_reduce. A look moves none.
void SharedBucketReduction::reduce(Bucket& bucket) {
  const auto world = static_cast<size_t>(group_.world_size());
  const bool is_average = world == 1 && divisor() == 1;
  const size_t step = checks_finite_ ? kCheckedAtOnce : bucket.shard_count;
  std::array<void*, kMaxRanks> parts;
  for (size_t begin = 0; begin < bucket.shard_count; begin += step) {
    const size_t count = std::min(step, bucket.shard_count - begin);
    const size_t offset = bucket.shard_offset + begin * size_of(bucket.dtype);
    for (size_t peer = 0; peer < world; ++peer) parts[peer] = buffers_[peer] + offset;
    if (!is_average) {
      average({parts.data(), world}, {parts.data(), world}, count, bucket.dtype, divisor());
    }
    if (checks_finite_ && are_finite_)
      are_finite_ = comm::are_finite(parts[0], count, bucket.dtype);
  }
}

/// Once a bucket is complete all ranks have published, so their weights are there.
double SharedBucketReduction::divisor() {
  if (divisor_ == 0) {
    for (int rank = 0; rank < group_.world_size(); ++rank) divisor_ += flags_.weight_of(rank);
    if (divisor_ == 0) divisor_ = 1;
  }
  return divisor_;
}

bool SharedBucketReduction::finish(const void* report, bool complete,
                                   const CollectiveOptions& options) {
  Call call = group_.begin(OpKind::kBucketReduction, buckets_.size(), DataType::kUInt8, options);
  check_in_round("finish");
  check_report(report, report_bytes_);
  if (complete) check_complete();
  call.signature.root = static_cast<int32_t>(flags_.number());
  call.begin_ticks = event_ticks();
  if (report_bytes_ != 0) {
    std::memcpy(flags_.report_of(group_.rank(), finished_ + 1), report, report_bytes_);
  }
  const bool all_complete = enter(call, complete);
  if (all_complete) advance();
  group_.step(call);
  ++finished_;
  group_.finish(call, bytes_);
  return all_complete;
}

/// True if all ranks are complete. Whatever is thrown ends the round.
bool SharedBucketReduction::enter(Call& call, bool complete) {
  begun_ = false;
  const auto own = std::byte{complete};
  group_.enter(call, &own, sizeof(own), complete ? &advance_ : nullptr);
  latest_rank_ = group_.lockstep_.latest_rank();
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    if (*group_.lockstep_.inline_data_of(rank) == std::byte{0}) return false;
  }
  return true;
}

const std::byte* SharedBucketReduction::report_of(int rank) const {
  check_peer("report_of", "rank", rank, 0, group_.world_size());
  return flags_.report_of(rank, finished_);
}

BucketTimes SharedBucketReduction::times_of(size_t index) const {
  check_bucket("times_of", index);
  const Bucket& bucket = buckets_[index];
  std::array<uint64_t, 3> times{bucket.published_ticks, bucket.complete_ticks,
                                bucket.reduced_ticks};
  convert_to_ns(times.data(), times.size());
  return {times[0], times[1], times[2]};
}

void SharedBucketReduction::check_bucket(const char* call, size_t index) const {
  if (index < buckets_.size()) return;
  throw InvalidArgument(
      "bucket-index",
      std::string(call) + "() was called with bucket " + std::to_string(index) + ".",
      "there are " + std::to_string(buckets_.size()) + " buckets, counted from 0.",
      "pass a bucket's index in what make_bucket_reduction() got.");
}

void SharedBucketReduction::check_in_round(const char* call) const {
  if (in_round()) return;
  throw InvalidArgument("bucket-no-round", std::string(call) + "() was called outside of a round.",
                        "begin() was not called since the last finish(), or since a MismatchError "
                        "of the group, which ends a round.",
                        "call begin() first.");
}

void SharedBucketReduction::check_complete() const {
  if (published_ + skipped_ == buckets_.size()) return;
  size_t missing = 0;
  while (buckets_[missing].is_published) ++missing;
  throw InvalidArgument("bucket-not-published",
                        "finish() was called as complete, but bucket " + std::to_string(missing) +
                            " was not published.",
                        "its elements would be averaged before they are ready.",
                        "publish every bucket, with zeros where there is nothing to contribute, or "
                        "pass complete=false.");
}

}  // namespace farandole::comm::shm
