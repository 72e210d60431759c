// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "farandole/comm/types.h"
#include "farandole/export.h"

namespace farandole::comm {

struct CollectiveOptions;

/// A part of a symmetric buffer that is reduced as a whole: bytes [offset, offset + count * size)
/// of every rank's buffer. Rank r of P reduces the shard [r * count / P, (r + 1) * count / P).
struct BucketRange {
  size_t offset_bytes;  ///< from the start of the buffer, a multiple of 64
  size_t count;         ///< elements, a multiple of P * 64 / size_of(dtype)
  DataType dtype;
};

/// Times of a bucket in a round, in now_ns(); 0: not yet.
struct BucketTimes {
  uint64_t published_ns;  ///< this rank had filled it
  uint64_t complete_ns;   ///< this rank saw that all ranks had filled it
  uint64_t reduced_ns;    ///< this rank had reduced its shard
};

/// Averages the buckets of one symmetric buffer in place, while the ranks still compute the
/// contents of later buckets. It has no thread of its own, and no call before finish() waits.
///
/// A round is begin(), then publish() for each bucket that this rank has filled, in any order (or
/// skip() for a bucket that no rank fills), progress() as often as the caller likes, then finish().
/// When a rank finds that all ranks have published a bucket, it reduces its own shard of it at
/// once, from all ranks' buffers into all of them. After finish() every element is sum_r(buffer_r)
/// / sum_r(weight_r), added in rank order, half types in float32: the same bits for any layout of
/// buckets, on every rank and in every run.
///
/// From publish() to finish() a bucket belongs to the reduction. Otherwise it belongs to the
/// caller, and no other rank touches it.
///
/// Errors: finish() throws what collectives throw (communicator.h). begin() throws if the group is
/// over, as check_usable() does. Otherwise begin(), publish() and progress() throw InvalidArgument
/// (misuse; the round continues) and, in a forked child, CommError; they never report a failure of
/// another rank. A MismatchError in any collective of the group ends the round on every rank, also
/// on a rank that was not in finish(): its buckets are its own again, with undefined contents, and
/// begin() starts another round. After any other CommError in finish() the group is over, and ranks
/// that do not know this yet may still store into buckets.
///
/// Threads: one call at a time. finish() counts as a collective of the communicator; other
/// collectives may run within a round, also on another thread during begin(), publish() and
/// progress(). It may outlive the communicator, but must not be used then.
class FARANDOLE_API BucketReduction {
 public:
  virtual ~BucketReduction();

  /// Begins a round. `weight` >= 0 is the weight of this rank's gradients: 1 for a plain average, 0
  /// for a rank that has nothing to add. If all weights are 0, sums are not divided. With
  /// `checks_finite` this rank checks what it stores for Inf and NaN; see are_finite(). Local.
  virtual void begin(double weight, bool checks_finite = false) = 0;
  /// This rank has filled `bucket` (once a round). Also makes progress.
  virtual void publish(size_t bucket) = 0;
  /// `bucket` stays unchanged in this round (once a round): no rank reads or stores it. All ranks
  /// must skip the same buckets; a bucket that one rank skips and another publishes is not reduced,
  /// and its contents are undefined.
  virtual void skip(size_t bucket) = 0;
  /// Whether a round has begun and is not over: finish() or a MismatchError of the group ends it.
  virtual bool in_round() const = 0;
  /// Reduces this rank's shards of the buckets that all ranks have published. Cheap if there are
  /// none. Does nothing outside of a round.
  virtual void progress() = 0;

  /// Ends the round on all ranks; a collective. Sends `report`, of report_bytes(), to all ranks.
  /// `complete` means that this rank has published or skipped all buckets. If all ranks are
  /// complete, all buckets are reduced and the result is true. If a rank is not, the result is
  /// false on every rank, no other rank touches the buffer any more, its contents are undefined,
  /// and the next round may begin.
  virtual bool finish(const void* report, bool complete, const CollectiveOptions& options) = 0;
  /// Whether the averages that this rank stored in the last round are finite, as far as it checked
  /// them. Each average is stored by one rank.
  virtual bool are_finite() const = 0;

  /// Called when this rank begins to reduce its shard of `bucket`, on that thread; its result is
  /// destroyed when the reduction is done. Takes effect in the next round; null: no call. Must not
  /// throw.
  using Recorder = std::function<std::shared_ptr<void>(size_t bucket)>;
  virtual void set_recorder(Recorder recorder) = 0;

  virtual size_t report_bytes() const = 0;
  /// The report of `rank` in the last finish(); valid until the next one.
  virtual const std::byte* report_of(int rank) const = 0;
  /// Of the current round, or the last one.
  virtual BucketTimes times_of(size_t bucket) const = 0;
  /// The last rank to enter the last finish(), if that was after this rank; otherwise -1.
  virtual int latest_rank() const = 0;
};

}  // namespace farandole::comm
