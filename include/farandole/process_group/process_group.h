// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "farandole/comm/communicator.h"
#include "farandole/export.h"

namespace farandole {

class CollectiveQueue;

/// The backend "farandole" of torch.distributed: tensors in, Communicator calls out.
///
/// Tensors may have any strides; those that are not row-major are copied once on the way in or out.
/// Moves (broadcast, gather, ...) take every dtype, reductions those of comm::DataType. What the
/// caller gets wrong alone is InvalidArgument or NotSupported before anything is sent; the rest are
/// CommErrors.
///
/// Order: one queue per group. A synchronous call (asyncOp == false) runs on the calling thread if
/// nothing is ahead of it, throws its error there and returns a finished Work; an asynchronous one
/// runs on the group's executor thread, which sleeps when idle, and its Work carries the error.
/// Timeouts: a call's own, else the group's; counted from when the collective starts to run.
/// Threads: any; collectives of different threads run in the order in which they were issued.
/// Fork: in a forked child every collective throws CommError.
/// Destruction never communicates: what is pending is aborted, and peers that wait are told.
class FARANDOLE_API ProcessGroupFarandole : public c10d::Backend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  /// What a group is made with. `group_name` is the name in messages ("default" if empty).
  struct FARANDOLE_API Options : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout);
    ~Options() override;
#ifdef C10D_BACKEND_HAS_RECONFIGURE
    c10::intrusive_ptr<c10d::Backend::Options> clone() const override;
#endif
  };

  /// Collective: every rank of the group makes one with the same store, which must outlive the
  /// call. Throws TimeoutError naming the ranks that did not come.
  ProcessGroupFarandole(
      const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
      const c10::intrusive_ptr<Options>& options = c10::make_intrusive<Options>());
  ~ProcessGroupFarandole() override;

  /// Our backend for `group`'s CPU tensors, also inside what TORCH_DISTRIBUTED_DEBUG=DETAIL wraps
  /// around it; the empty pointer if they go elsewhere.
  static c10::intrusive_ptr<ProcessGroupFarandole> of(c10d::ProcessGroup& group);

  const std::string getBackendName() const override;
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
  /// The name in messages.
  const std::string& name() const { return options_->group_name; }
  /// What the tensors travel through; null after shutdown().
  std::shared_ptr<comm::Communicator> communicator() const;
  const comm::Topology& topology() const { return topology_; }

  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  Work allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  Work reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const c10d::ReduceScatterOptions& opts) override;
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions& opts) override;
  Work reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::ReduceScatterOptions& opts) override;

  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  Work allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::AllgatherOptions& opts) override;
  Work _allgather_base(at::Tensor& output, at::Tensor& input,
                       const c10d::AllgatherOptions& opts) override;
  Work allgather_coalesced(std::vector<Tensors>& output_lists, Tensors& inputs,
                           const c10d::AllgatherOptions& opts) override;
  Work allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& opts) override;
  Work gather(std::vector<Tensors>& outputs, Tensors& inputs,
              const c10d::GatherOptions& opts) override;
  Work scatter(Tensors& outputs, std::vector<Tensors>& inputs,
               const c10d::ScatterOptions& opts) override;
  /// Equal splits alone; others are NotSupported.
  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                     std::vector<int64_t>& input_splits,
                     const c10d::AllToAllOptions& opts) override;
  Work alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  Work barrier(const c10d::BarrierOptions& opts) override;

  // Not there yet: each throws NotSupported and says what to use instead.
  Work allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  Work send(Tensors& tensors, int destination, int tag) override;
  Work recv(Tensors& tensors, int source, int tag) override;
  Work recvAnysource(Tensors& tensors, int tag) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  /// Does nothing: every rank counts from 0.
  void setSequenceNumberForGroup() override;
  /// Collectives issued so far.
  uint64_t getSequenceNumberForGroup() override;
  /// For collectives issued from now on.
  void setTimeout(std::chrono::milliseconds timeout) override;
  /// What went wrong first in this group.
  c10d::ErrorType getError() override;
  /// Fails every collective of the group, here and on its peers, within 100 ms.
  void abort() override;
  /// Ends the group on this rank: aborts what is pending, ends the executor, lets go of the memory.
  void shutdown() override;

 private:
  struct Operation;
  struct Call;
  using Body = std::function<void(comm::Communicator&, const comm::CollectiveOptions&)>;

  struct Caller caller(const Operation& operation) const;
  Work launch(Call call, Body body);
  Work run_here(Call& call, const Body& body, comm::Communicator& communicator, uint64_t sequence);
  Work enqueue(Call& call, Body body, std::shared_ptr<comm::Communicator> communicator);
  void run(const Call& call, const Body& body, comm::Communicator& communicator);
  std::chrono::milliseconds timeout_of(std::chrono::milliseconds asked) const;
  [[noreturn]] void refuse(const char* operation, const char* instead) const;

  const c10::intrusive_ptr<Options> options_;
  std::atomic<std::chrono::milliseconds> timeout_;
  /// First error; shared with tasks that outlive this.
  std::shared_ptr<std::atomic<c10d::ErrorType>> error_;
  comm::Topology topology_;
  mutable std::mutex mutex_;
  std::shared_ptr<comm::Communicator> communicator_;  // guarded by mutex_
  std::unique_ptr<CollectiveQueue> queue_;
};

}  // namespace farandole
