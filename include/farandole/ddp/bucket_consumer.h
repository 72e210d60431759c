// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

#include "farandole/comm/bucket_reduction.h"
#include "farandole/export.h"

namespace farandole {

/// What a rank sends to all ranks at the end of a backward: a packed BackwardReport.
using RankReport = std::vector<std::byte>;

/// Averages full buckets. The Reducer fills buckets and calls a consumer; one consumer serves one
/// set of buckets (see Buckets in bucket.h).
///
/// From launch() to finish() a bucket belongs to the consumer. Calls come from the autograd thread,
/// one at a time. An exception from a call leaves backward.
class FARANDOLE_API BucketConsumer {
 public:
  virtual ~BucketConsumer();

  /// Whether every rank must launch buckets in the order of the plan. If not, a bucket is launched
  /// as soon as it is full.
  virtual bool in_plan_order() const = 0;
  /// A backward begins whose buckets will be launched. `weight`, `checks_finite`: see
  /// BucketReduction::begin().
  virtual void begin(double weight, bool checks_finite) = 0;
  /// `bucket` is full on this rank. Must not wait for peers.
  virtual void launch(size_t bucket) = 0;
  /// Called instead of launch(): `bucket` stays unchanged in this backward, on all ranks.
  virtual void skip(size_t bucket) = 0;
  /// Called with every gradient: reduces buckets that have become ready.
  virtual void progress() {}
  /// The backward of this rank has ended with some buckets not full: joins the collectives for
  /// these buckets in which the other ranks wait. If it throws, or launch() has thrown, it is
  /// called again for the abandoned backward.
  virtual void launch_rest() {}
  /// Makes the current streams wait for what was launched and is on an accelerator. Does not throw.
  virtual void join_streams() noexcept {}
  /// Whether the other ranks may wait for finish() of this round. They do not after a MismatchError
  /// of the group, which has ended the round on all ranks.
  virtual bool is_awaited() const { return true; }
  /// Waits for the other ranks and exchanges reports of report_bytes().
  /// True if all ranks were `complete` (they have launched or skipped every bucket) and nothing has
  /// failed on any rank. Then buckets hold the average, sum_r(bucket_r) / sum_r(weight_r), on every
  /// rank. Otherwise their contents are undefined. Collective.
  virtual bool finish(const RankReport& report, bool complete) = 0;
  /// Whether all averages that this rank computed in the last backward are finite, as far as it
  /// checked; nullopt: this consumer does not check.
  virtual std::optional<bool> are_finite() const { return std::nullopt; }
  /// The failure on this rank in the last backward that finish() reported to the other ranks
  /// instead of throwing it; null: none.
  virtual std::exception_ptr failure() const { return nullptr; }
  /// The bucket for which something failed on `rank`; nullopt: none.
  virtual std::optional<size_t> failed_bucket_of(int /*rank*/) const { return std::nullopt; }
  /// The report of `rank` in the last finish().
  virtual const std::byte* report_of(int rank) const = 0;

  /// Of the current backward, or the last one.
  virtual comm::BucketTimes times_of(size_t bucket) const = 0;
};

}  // namespace farandole
