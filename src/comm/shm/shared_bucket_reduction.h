// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/shm/bucket_board.h"
#include "comm/shm/lockstep.h"
#include "comm/shm/shared_memory_communicator.h"
#include "farandole/comm/communicator.h"

namespace farandole::comm::shm {

/// Buckets of symmetric memory that whoever comes by reduces, while the ranks compute.
///
/// Protocol. Round n on rank r is
///   begin: write the weight.
///   skip(b): count b as done, here alone.
///   publish(b): fill b; write b into the list of publications; news = (n, how many).
///   progress: read the news of each peer; those of another round are none. For each bucket that is
///             in all ranks' lists, once: read shard r of all ranks' buffers, store the average
///             into all.
///   finish: write the note; enter (lockstep.h), telling whether r is complete, and making progress
///           while waiting; if all ranks are complete, progress once more; step.
/// n counts what all ranks pass alike: finished rounds, and collectives of the group in which a
/// mismatch was found.
///
/// Between enter and step each rank stores for the last time, so after step() the buffers, the
/// lists and the weights belong to their ranks again, and a rank may begin round n + 1 while others
/// have not returned yet. Those take its news for what they are, of another round. Notes have two
/// places: that of round n is read until its reader enters finish n + 1, and written again in
/// finish n + 2, when all have entered.
///
/// If a rank is not complete, all do without the last progress, and step all the same: a peer may
/// still be storing shards of buckets that were complete when the last rank entered. In a mismatch
/// Lockstep makes that barrier, for a rank that is in another collective too. Its publications of
/// round n then mean nothing to anyone, for n has been counted on. Another thread of that rank may
/// be making progress meanwhile: while it reduces it holds the mismatch off, and with it the
/// barrier.
///
/// Memory order. Publications are releases and acquires (bucket_board.h): who reduces a bucket sees
/// what all ranks filled. Each rank's stores come before its step (release), and all steps before
/// the return from finish (acquire).
///
/// Every shard is whole cache lines, so no two ranks store to one.
///
/// Threads: one call at a time, while others may be in other collectives. Fork: in a child every
/// call throws.
class SharedBucketReduction final : public BucketReduction {
 public:
  /// Collective; see Communicator::make_bucket_reduction().
  static std::shared_ptr<BucketReduction> make(SharedMemoryCommunicator& group,
                                               std::shared_ptr<SymmetricMemory> memory,
                                               const std::vector<BucketRange>& ranges,
                                               size_t note_bytes);

  /// `group` must live while this is used. Every rank has checked that all pass the same.
  SharedBucketReduction(SharedMemoryCommunicator& group, std::shared_ptr<SymmetricMemory> memory,
                        const std::vector<BucketRange>& ranges, BucketBoard board,
                        size_t note_bytes);

  void begin(double weight, bool looks) override;
  void publish(size_t bucket) override;
  void skip(size_t bucket) override;
  void progress() override;
  bool finish(const void* note, bool complete, const CollectiveOptions& options) override;
  bool are_finite() const override { return are_finite_; }
  void set_recorder(Recorder recorder) override { recorder_ = std::move(recorder); }
  size_t note_bytes() const override { return note_bytes_; }
  const std::byte* note_of(int rank) const override;
  BucketTimes times_of(size_t bucket) const override;
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

  bool in_round() const { return begun_ && round_ == round_of_all(); }
  uint64_t round_of_all() const;
  void check_bucket(const char* call, size_t index) const;
  void check_in_round(const char* call) const;
  void check_complete() const;
  Bucket& claim(const char* call, size_t index);

  void take_news(int peer, uint64_t news);
  void count_publication(size_t index);
  void advance();
  void reduce_ready();
  void reduce(Bucket& bucket);
  double divisor();
  bool enter(Call& call, bool complete);

  SharedMemoryCommunicator& group_;
  std::shared_ptr<SymmetricMemory> memory_;
  BucketBoard board_;
  size_t note_bytes_;
  size_t bytes_;                     ///< of all buckets
  std::vector<std::byte*> buffers_;  ///< by rank
  std::vector<Bucket> buckets_;
  std::vector<size_t>
      ready_;  ///< all ranks have published them, this one has not reduced its shard
  std::vector<uint64_t> news_;   ///< what is known of each rank
  Lockstep::Meanwhile advance_;  ///< for waits: tells whether there is more to reduce
  uint64_t finished_ = 0;        ///< rounds, on all ranks
  uint64_t round_ = 0;           ///< the present one, or the last
  bool begun_ = false;
  size_t published_ = 0;  ///< by this rank, in this round
  size_t skipped_ = 0;    ///< likewise
  size_t reduced_ = 0;    ///< likewise
  double divisor_ = 0;    ///< of this round; 0: not known yet
  bool looks_ = false;    ///< in this round
  bool are_finite_ = true;
  int latest_rank_ = -1;
  Recorder recorder_;
};

}  // namespace farandole::comm::shm
