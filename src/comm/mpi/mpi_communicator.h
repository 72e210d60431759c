// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/mpi/entry.h"
#include "comm/mpi/group.h"
#include "comm/mpi/messages.h"
#include "comm/mpi/wide_collectives.h"
#include "comm/shm/control_block.h"
#include "farandole/comm/backends.h"
#include "farandole/comm/communicator.h"

namespace farandole::comm::mpi {

/// Collectives by MPI's own, over whatever fabric MPI uses. All ranks must be processes of one
/// MPI_COMM_WORLD, started by mpirun or srun; a group may be a part of it.
///
/// A collective is an Entry, in which ranks wait for each other and compare their calls, and then
/// MPI's collective. So a late, dead or aborting rank is noticed before the collective; within it
/// MPI alone decides what the end of a process does (mpirun ends the job; with ULFM PeerFailure).
///
/// Unlike in the other backends sums are not formed in rank order: see Reduction.
///
/// Threads and errors: as communicator.h says.
class MpiCommunicator final : public Communicator {
 public:
  /// Collective. Throws what make_communicator() lists, and NotSupported if MPI has not started
  /// these ranks.
  static std::unique_ptr<Communicator> make(Store& store, const CommunicatorOptions& asked);
  ~MpiCommunicator() override;

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

  void check_usable() const override;
  void check_alive() const override;
  void check_joins(const std::function<bool(int rank)>& is_missed) override {
    group_->check_joins(is_missed);
  }
  void abort(const std::string& reason) override;
  void set_timeout(std::chrono::milliseconds timeout) override;
  std::unique_ptr<Communicator> shrink(const std::vector<int>& excluded, Store& store) override;

 private:
  /// One collective under way on this rank.
  struct Call {
    shm::Signature signature;
    const CollectiveOptions& options;
    uint64_t begin_ticks;
  };

  MpiCommunicator(const CommunicatorOptions& options, const Topology& topology, MPI_Comm made,
                  shm::Liveness liveness);

  Call begin(OpKind operation, size_t count, DataType dtype, const CollectiveOptions& options);
  /// Enters and runs `body`, if there is something to do; whatever other error than a mismatch ends
  /// it, ends the group.
  template <class Body>
  void run(Call& call, size_t bytes, const Body& body);
  void give_up(const std::exception& error);
  void note(const Call& call, size_t bytes, uint64_t arrived_ticks) const;
  std::chrono::milliseconds timeout_of(const CollectiveOptions& options) const;
  void exchange_blocks(const void* input, const size_t* send_counts, void* output,
                       const size_t* receive_counts, size_t element_bytes);
  Group::Subject subject() const;

  CommunicatorOptions options_;
  std::atomic<std::chrono::milliseconds> timeout_;
  uint32_t event_group_;
  std::unique_ptr<Group> group_;
  Entry entry_;
  WideCollectives collectives_;
  std::shared_ptr<Messages> messages_;
  std::exception_ptr failure_;  ///< why the group is over, as thrown on this rank
};

}  // namespace farandole::comm::mpi
