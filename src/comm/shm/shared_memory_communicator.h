// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/shm/bootstrap/descriptor_exchange.h"
#include "comm/shm/call.h"
#include "comm/shm/lockstep.h"
#include "comm/shm/point_to_point.h"
#include "comm/shm/staging.h"
#include "comm/shm/symmetric_registry.h"
#include "comm/shm/system/segment.h"
#include "farandole/comm/backends.h"
#include "farandole/comm/communicator.h"
#include "farandole/comm/shared_memory.h"

namespace farandole::comm::shm {

/// How long a group of these options waits for its ranks while it forms.
FARANDOLE_API std::chrono::milliseconds formation_timeout(const CommunicatorOptions& options);

/// Collectives among ranks of one host through memory that all of them map. Ranks are processes, or
/// threads of one process (tests).
///
/// Every collective begins with one announcement (Lockstep::enter). Then the data take one of three
/// ways:
/// - direct: small tensors. Each rank reads all ranks' slots and reduces for itself; one barrier.
/// - symmetric: buffers in symmetric memory. Rank r handles shard r straight in all peers' buffers.
/// - staged: everything else, chunk by chunk through two slots per rank; one barrier a chunk.
class SharedMemoryCommunicator final : public Communicator, public SharedMemory {
 public:
  /// Collective. Throws what make_communicator() lists.
  static std::unique_ptr<Communicator> make(Store& store, const CommunicatorOptions& asked);
  /// The two halves of make(). First all ranks meet; then those of `topology`, which share a host,
  /// share memory. The ranks of `topology` may be a part of those that have met.
  FARANDOLE_API static Topology discover(Store& store, const CommunicatorOptions& options);
  static std::unique_ptr<SharedMemoryCommunicator> form(Store& store,
                                                        const CommunicatorOptions& asked,
                                                        const Topology& topology);
  /// Throws NotSupported for more ranks than one host can have.
  static void check_ranks_on_host(int count);
  ~SharedMemoryCommunicator() override;

  MemoryKind memory_kind() const override { return MemoryKind::kHost; }

  void all_reduce(const void* input, void* output, size_t count, DataType dtype, ReduceOp op,
                  const CollectiveOptions& options) override;
  void reduce_scatter(const void* input, void* output, size_t count, DataType dtype, ReduceOp op,
                      const CollectiveOptions& options) override;
  void all_gather(const void* input, void* output, size_t count, DataType dtype,
                  const CollectiveOptions& options) override;
  void broadcast(void* buffer, size_t count, DataType dtype, int root,
                 const CollectiveOptions& options) override;
  void reduce(const void* input, void* output, size_t count, DataType dtype, ReduceOp op, int root,
              const CollectiveOptions& options) override;
  void gather(const void* input, void* output, size_t count, DataType dtype, int root,
              const CollectiveOptions& options) override;
  void scatter(const void* input, void* output, size_t count, DataType dtype, int root,
               const CollectiveOptions& options) override;
  void all_to_all(const void* input, void* output, size_t count, DataType dtype,
                  const CollectiveOptions& options) override;
  void all_to_all_v(const void* input, const size_t* send_counts, void* output,
                    const size_t* receive_counts, DataType dtype,
                    const CollectiveOptions& options) override;
  void barrier(const CollectiveOptions& options) override;
  std::shared_ptr<Transfer> send(const void* data, size_t bytes, int destination, uint64_t tag,
                                 const CollectiveOptions& options) override;
  std::shared_ptr<Transfer> receive(void* data, size_t bytes, int source, uint64_t tag,
                                    const CollectiveOptions& options) override;

  SharedMemory* shared_memory() override { return this; }
  std::shared_ptr<SymmetricMemory> allocate_symmetric(size_t bytes) override;
  std::shared_ptr<SymmetricMemory> find_symmetric(const void* data, size_t bytes) const override;
  std::shared_ptr<Signals> make_signals() override;
  std::shared_ptr<BucketReduction> make_bucket_reduction(std::shared_ptr<SymmetricMemory> memory,
                                                         const std::vector<BucketRange>& buckets,
                                                         size_t report_bytes) override;
  void check_usable() const override;
  void check_alive() const override { lockstep_.check_alive(); }
  void check_joins(const std::function<bool(int rank)>& is_missed) override {
    lockstep_.check_joins(is_missed);
  }
  void abort(const std::string& reason) override;
  void set_timeout(std::chrono::milliseconds timeout) override { timeout_.store(timeout); }
  std::unique_ptr<Communicator> shrink(const std::vector<int>& excluded, Store& store) override;

  // For a communicator of several hosts, which has the ranks of a host meet in its own collectives.

  /// Begins its collective `signature`. Throws what collectives throw.
  void enter_for(const Signature& signature, const CollectiveOptions& options);
  /// A barrier within it; `timeout` counts from here.
  void step_for(std::chrono::milliseconds timeout);
  /// What `rank` of this host has passed to the last enter_for().
  Signature signature_of(int rank) const { return lockstep_.signature_of(rank); }
  const Lockstep& lockstep() const { return lockstep_; }
  /// Which reaches ranks of other hosts once they are added.
  PointToPoint& point_to_point() { return point_to_point_; }
  /// As abort(), because `lost_rank` of the larger group ended or left; -1: another reason.
  void abort_for(const std::string& reason, int lost_rank, int origin = -1);
  /// What this rank has passed to abort_for(), or gave up for. Once before_abort is called.
  std::pair<std::string, int> own_abort() const { return lockstep_.own_abort(); }

 private:
  friend class SharedBucketReduction;  // a collective with a state of its own

  /// What is left of a communicator's making: see make().
  struct Parts;

  explicit SharedMemoryCommunicator(Parts parts);

  Call begin(OpKind operation, size_t count, DataType dtype,
             const CollectiveOptions& options) const;
  std::chrono::milliseconds timeout_of(const CollectiveOptions& options) const;
  void enter(Call& call, const void* inline_data = nullptr, size_t inline_bytes = 0,
             const Lockstep::Meanwhile* meanwhile = nullptr);
  /// Takes a turn with slots of `slot_bytes` and enters. True if all ranks announced places in the
  /// same symmetric allocations; else every rank has run fill_first, which writes its slot.
  template <class FillFirst>
  bool enter(Call& call, size_t slot_bytes, const FillFirst& fill_first);
  void step(const Call& call) { lockstep_.step({call.timeout}); }
  void finish(const Call& call) const;
  void finish(const Call& call, size_t bytes) const;
  bool all_filled() const;
  bool same_allocation(uint64_t Signature::*place) const;
  std::byte* peer_address(int rank, uint64_t Signature::*place) const;

  /// Which blocks of a tensor pass through the slots: see exchange.cpp.
  struct Blocks;
  template <class Drain>
  bool exchange(Call& call, const Blocks& blocks, const Drain& drain);
  bool move_blocks(Call& call, const Blocks& blocks, std::byte* output, int only_from = -1);
  bool reduce_blocks(Call& call, const Blocks& blocks, std::byte* output);

  void reduce_for_oneself(const Call& call, const void* input, void* output) const;
  void symmetric_all_reduce(const Call& call);
  struct StagedAllReduce;
  void slotted_all_reduce(Call& call, const std::byte* input, std::byte* output);
  bool reads_all_slots(size_t bytes) const;
  std::shared_ptr<Mapping> share_allocation(const Call& call);
  void offer_symmetric(Call& call, const void* data, size_t bytes) const;

  CommunicatorOptions options_;
  std::atomic<std::chrono::milliseconds> timeout_;  ///< of calls that have none
  bool oversubscribed_;                             ///< more ranks than cores
  size_t barrier_bytes_;  ///< about what a rank moves in the time of one barrier
  size_t
      symmetric_from_;  ///< bytes above which symmetric memory saves more than its second barrier
  uint32_t event_group_;
  DescriptorExchange descriptors_;
  std::shared_ptr<Mapping> memory_;
  std::shared_ptr<SymmetricRegistry> symmetric_;
  mutable Lockstep lockstep_;
  Staging staging_;
  PointToPoint point_to_point_;
};

template <class FillFirst>
bool SharedMemoryCommunicator::enter(Call& call, size_t slot_bytes, const FillFirst& fill_first) {
  staging_.next_turn(slot_bytes);
  const bool symmetric = call.signature.input != 0 && call.signature.output != 0;
  if (!symmetric) {
    fill_first();
    call.signature.filled = 1;
  }
  enter(call);
  if (symmetric && same_allocation(&Signature::input) && same_allocation(&Signature::output)) {
    return true;
  }
  if (all_filled()) return false;
  // Some ranks have their tensor in symmetric memory and others have not.
  if (symmetric) fill_first();
  step(call);
  return false;
}

}  // namespace farandole::comm::shm
