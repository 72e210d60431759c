// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/shm/buckets/ready_flags.h"
#include "comm/shm/lockstep.h"
#include "comm/shm/shared_memory_communicator.h"
#include "farandole/comm/communicator.h"

namespace farandole::comm::shm {

/// Reduces buckets in symmetric memory while the ranks compute: each rank reduces its shard of a
/// bucket when it finds that all ranks have filled the bucket.
///
/// Protocol. Round n on rank r is
///   begin: write the weight.
///   skip(b): count b as done, on this rank only.
///   publish(b): fill b; append b to the list of publications; counter = (n, publications).
///   progress: read the counter of each peer and ignore those of another round. For each bucket
///   that
///             is in the lists of all ranks, once: read shard r of all ranks' buffers, store the
///             average into all.
///   finish: write the report; enter (lockstep.h), with a flag whether r is complete, and make
///           progress while waiting; if all ranks are complete, make progress once more; step.
/// n is the same on all ranks: finished rounds plus collectives of the group in which a mismatch
/// was found.
///
/// Each rank stores for the last time between enter and step. So after step() the buffers, the
/// lists and the weights belong to their ranks again, and a rank may begin round n + 1 while others
/// have not returned yet. Those see a counter of another round and ignore it. There is memory for
/// two reports: the report of round n is read until its reader enters finish n + 1, and overwritten
/// in finish n + 2, when all ranks have entered.
///
/// If a rank is not complete, all ranks leave out the last progress, and still step: a peer may be
/// storing shards of buckets that were complete when the last rank entered. After a mismatch
/// Lockstep makes that barrier, also for a rank that is in another collective. Publications of
/// round n are then ignored, because n has been incremented. Another thread of that rank may be
/// making progress at the same time; while it reduces, it delays the mismatch and with it the
/// barrier.
///
/// Memory order. Publications are releases and acquires (ready_flags.h), so a rank that reduces a
/// bucket sees what all ranks have filled in. Each rank's stores come before its step (release),
/// and all steps before the return from finish (acquire).
///
/// Every shard is whole cache lines, so no two ranks store to the same line.
///
/// Threads: one call at a time, while other collectives may run. Fork: every call throws in a
/// child.
class SharedBucketReduction final : public BucketReduction {
 public:
  /// Collective; see SharedMemory::make_bucket_reduction().
  static std::shared_ptr<BucketReduction> make(SharedMemoryCommunicator& group,
                                               std::shared_ptr<SymmetricMemory> memory,
                                               const std::vector<BucketRange>& ranges,
                                               size_t report_bytes);

  /// `group` must live while this is used. Every rank has checked that all pass the same.
  SharedBucketReduction(SharedMemoryCommunicator& group, std::shared_ptr<SymmetricMemory> memory,
                        const std::vector<BucketRange>& ranges, ReadyFlags flags,
                        size_t report_bytes);

  void begin(double weight, bool checks_finite) override;
  void publish(size_t index) override;
  void skip(size_t index) override;
  bool in_round() const override { return begun_ && round_ == round_of_all(); }
  void progress() override;
  bool finish(const void* report, bool complete, const CollectiveOptions& options) override;
  bool are_finite() const override { return are_finite_; }
  void set_recorder(Recorder recorder) override { recorder_ = std::move(recorder); }
  size_t report_bytes() const override { return report_bytes_; }
  const std::byte* report_of(int rank) const override;
  BucketTimes times_of(size_t index) const override;
  int latest_rank() const override { return latest_rank_; }

 private:
  struct Bucket {
    size_t shard_offset;  ///< bytes from the start of a rank's buffer
    size_t shard_count;   ///< elements
    DataType dtype;
    bool is_published;  ///< by this rank, in this round; or skipped
    int ranks;          ///< that have published it in this round, as far as known
    uint64_t published_ticks;
    uint64_t complete_ticks;
    uint64_t reduced_ticks;
  };

  uint64_t round_of_all() const;
  void check_bucket(const char* call, size_t index) const;
  void check_in_round(const char* call) const;
  void check_complete() const;
  Bucket& claim(const char* call, size_t index);

  void take_counter(int peer, uint64_t counter);
  void count_publication(size_t index);
  void advance();
  void reduce_ready();
  void reduce(Bucket& bucket);
  double divisor();
  bool enter(Call& call, bool complete);

  SharedMemoryCommunicator& group_;
  std::shared_ptr<SymmetricMemory> memory_;
  ReadyFlags flags_;
  size_t report_bytes_;
  size_t bytes_;                     ///< of all buckets
  std::vector<std::byte*> buffers_;  ///< by rank
  std::vector<Bucket> buckets_;
  std::vector<size_t>
      ready_;  ///< all ranks have published them, this one has not reduced its shard
  std::vector<uint64_t> counters_;  ///< the last one seen of each rank
  Lockstep::Meanwhile advance_;     ///< for waits: tells whether there is more to reduce
  uint64_t finished_ = 0;           ///< rounds, on all ranks
  uint64_t round_ = 0;              ///< the present one, or the last
  bool begun_ = false;
  size_t published_ = 0;        ///< by this rank, in this round
  size_t skipped_ = 0;          ///< likewise
  size_t reduced_ = 0;          ///< likewise
  double divisor_ = 0;          ///< of this round; 0: not known yet
  bool checks_finite_ = false;  ///< in this round
  bool are_finite_ = true;
  int latest_rank_ = -1;
  Recorder recorder_;
};

}  // namespace farandole::comm::shm
