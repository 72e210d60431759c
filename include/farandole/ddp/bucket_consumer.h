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

/// What a rank tells the others at the end of a backward, and the same of the others.
using Note = std::vector<std::byte>;

/// What becomes of full buckets. The Reducer fills them and calls; one consumer serves one set of
/// buckets (see Buckets in bucket.h).
///
/// From launch() to finish() a bucket belongs to the consumer. Calls come from the thread of
/// autograd, one at a time. What they throw leaves backward.
class FARANDOLE_API BucketConsumer {
 public:
  virtual ~BucketConsumer();

  /// Whether every rank must launch in the order of the plan. If not, buckets are launched the
  /// moment they are full.
  virtual bool in_plan_order() const = 0;
  /// A backward begins whose buckets will be launched. `weight`, `looks`: see
  /// BucketReduction::begin().
  virtual void begin(double weight, bool looks) = 0;
  /// `bucket` is full on this rank. Must not wait for peers.
  virtual void launch(size_t bucket) = 0;
  /// `bucket` stays as it is in this backward, in place of launch(): all ranks do the same.
  virtual void skip(size_t bucket) = 0;
  /// Called at every gradient: time to do what peers have made possible.
  virtual void progress() {}
  /// The backward of this rank has ended, if some buckets are not full: does for those what peers
  /// wait for. If it throws, or launch() has, it is called again for the abandoned backward.
  virtual void launch_rest() {}
  /// Waits for the peers and exchanges notes of note_bytes().
  /// True if all ranks were `complete`, which says that they have launched or skipped every bucket,
  /// and nothing has failed on any: then buckets hold the average, sum_r(bucket_r) /
  /// sum_r(weight_r), on every rank. Else they hold anything. Collective.
  virtual bool finish(const Note& note, bool complete) = 0;
  /// Whether no average that this rank has made in the last backward is Inf or NaN, if it looked;
  /// nullopt: this consumer does not look.
  virtual std::optional<bool> are_finite() const { return std::nullopt; }
  /// What failed on this rank in the last backward, which finish() has told peers, and not thrown.
  virtual std::exception_ptr failure() const { return nullptr; }
  /// The bucket for which something failed on `rank`; nullopt: nothing has.
  virtual std::optional<size_t> failed_bucket_of(int /*rank*/) const { return std::nullopt; }
  /// What `rank` told in the last finish().
  virtual const std::byte* note_of(int rank) const = 0;

  /// Of the present backward or the last one.
  virtual comm::BucketTimes times_of(size_t bucket) const = 0;
};

}  // namespace farandole
