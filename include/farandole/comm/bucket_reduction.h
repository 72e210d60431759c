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

/// A part of a symmetric buffer that is reduced as one: elements [offset, offset + count * size) of
/// every rank. Rank r of P reduces the shard [r * count / P, (r + 1) * count / P).
struct BucketRange {
  size_t offset_bytes;  ///< from the start of the buffer, a multiple of 64
  size_t count;         ///< elements, a multiple of P * 64 / size_of(dtype)
  DataType dtype;
};

/// When the buckets of a round were where, in now_ns(); 0: not yet.
struct BucketTimes {
  uint64_t published_ns;  ///< this rank had filled it
  uint64_t complete_ns;   ///< this rank saw that all ranks had
  uint64_t reduced_ns;    ///< this rank had reduced its shard
};

/// Averages the buckets of one symmetric buffer in place, while the ranks still compute what goes
/// into later ones: no thread of its own, no call that waits until finish().
///
/// A round is begin(), then for each bucket that this rank has filled publish(), in any order (or
/// skip(), for one that no rank fills), and progress() as often as one likes, then finish().
/// Whoever finds a bucket that all ranks have published reduces its own shard of it then and there,
/// from all ranks' buffers into all of them. After finish() every element is sum_r(buffer_r) /
/// sum_r(weight_r), added in rank order, half types in float32: the same bits for any layout of
/// buckets, on every rank and in every run.
///
/// From publish() to finish() a bucket belongs to the reduction; else it is the caller's, and no
/// peer touches it.
///
/// Errors: finish() throws what collectives throw (communicator.h); begin(), publish() and
/// progress() throw only InvalidArgument (misuse; the round goes on) and, in a forked child,
/// CommError: never a peer's trouble. A MismatchError of any collective of the group ends the round
/// on every rank, also where a rank was not in finish(): its buckets are its own again, with
/// undefined contents, and begin() starts another. After any other CommError of finish() the group
/// is over, and peers that have not heard of it yet may still store into buckets.
///
/// Threads: one call at a time. finish() counts as a collective of the communicator; other
/// collectives may run within a round, also on another thread during begin(), publish() and
/// progress(). It may outlive the communicator, but not be used then.
class FARANDOLE_API BucketReduction {
 public:
  virtual ~BucketReduction();

  /// Begins a round, `weight` >= 0 being what this rank's gradients count for: 1 for a plain
  /// average, 0 for a rank that has nothing to add. If all weights are 0 the sums stay undivided.
  /// With `looks` this rank looks for Inf and NaN in what it stores: see are_finite(). Local.
  virtual void begin(double weight, bool looks = false) = 0;
  /// This rank has filled `bucket` (once a round). Also makes progress.
  virtual void publish(size_t bucket) = 0;
  /// `bucket` stays as it is in this round (once a round): nobody reads or stores it. All ranks
  /// skip the same; one that a rank skips and another publishes is not reduced, and undefined.
  virtual void skip(size_t bucket) = 0;
  /// Reduces this rank's shards of the buckets that all ranks have published. Cheap if there are
  /// none, and nothing outside of a round.
  virtual void progress() = 0;

  /// Ends the round on all ranks: a collective. `note`, note_bytes() of them, is told to all. With
  /// `complete` on all ranks, each has published or skipped all buckets; then they are reduced and
  /// the result is true. If a rank is not complete the result is false on every rank, no peer
  /// touches the buffer any more, and what it holds is undefined; the next round may begin.
  virtual bool finish(const void* note, bool complete, const CollectiveOptions& options) = 0;
  /// Whether no average that this rank has stored in the last round is Inf or NaN, as far as it has
  /// looked. Other ranks have stored the others.
  virtual bool are_finite() const = 0;

  /// Called when this rank begins to reduce its shard of `bucket`, on that thread; what it returns
  /// lives until that is done. From the next round on; null: nobody is told. Must not throw.
  using Recorder = std::function<std::shared_ptr<void>(size_t bucket)>;
  virtual void set_recorder(Recorder recorder) = 0;

  virtual size_t note_bytes() const = 0;
  /// What `rank` told in the last finish(); valid until the next one.
  virtual const std::byte* note_of(int rank) const = 0;
  /// Of the present round, or the last one.
  virtual BucketTimes times_of(size_t bucket) const = 0;
  /// The peer that came to the last finish() last, after this rank; -1 if nobody was waited for.
  virtual int latest_rank() const = 0;
};

}  // namespace farandole::comm
