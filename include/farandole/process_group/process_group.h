// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "farandole/comm/communicator.h"
#include "farandole/export.h"

namespace farandole {

class Coalescing;
class DeviceTransfer;
class GroupCommunicators;
struct Call;
struct GroupHooks;
struct Operation;
namespace comm {
class ForkGuard;
}

/// The backend "farandole" of torch.distributed: tensors in, Communicator calls out.
///
/// Tensors are on the CPU, or on one accelerator of each rank (CUDA, with the backend "nccl"). What
/// is said here is for the CPU, unless it names accelerators. Tensors may have any strides; those
/// that are not row-major are copied once on the way in or out. Moves (broadcast, gather, send,
/// ...) take every dtype, reductions those of comm::DataType, and complex64 and complex128 for
/// sums. What the caller gets wrong alone is InvalidArgument or NotSupported before anything is
/// sent; the rest are CommErrors.
///
/// Accelerators: a collective, send or receive is put on a stream of the group and returns; the
/// host does not wait. It runs after what the current stream was given before, and Work::wait()
/// makes the current stream wait for it. Tensors are kept until it has ended. Calls of the ranks
/// are not compared; a watchdog thread fails what takes too long, or what a lost rank is missing
/// in. The first call on a device, or eagerConnectSingleDevice(), is a collective for all ranks. A
/// rank has one device in a group. Where NCCL cannot serve, tensors are staged through host memory
/// (Config::device_backend): then calls are compared and fail as on the CPU, and Work::wait() and
/// synchronous calls also make the host wait, until the copy of the results is enqueued.
///
/// Order: one queue per group. A synchronous call (asyncOp == false) runs on the calling thread if
/// nothing is ahead of it, throws its error there and returns a finished Work; an asynchronous one
/// runs on the group's executor thread, which sleeps when idle, and its Work carries the error.
/// Sends and receives have no place in the queue: they run beside collectives, many at once, and
/// are matched by peer and tag in the order in which they were posted. Timeouts: a call's own, else
/// the group's; counted from when the collective starts to run. Threads: any; collectives of
/// different threads run in the order in which they were issued; reconfigure() alone needs the
/// group for itself. Fork: in a forked child every collective throws CommError. Destruction never
/// communicates: what is pending is aborted, and peers that wait are told.
class FARANDOLE_API ProcessGroupFarandole : public c10d::Backend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  /// What a group is made with. `group_name` is the name in messages ("default" if empty).
  struct FARANDOLE_API Options : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout);
    ~Options() override;
    /// Whether it is the default group, in which global_ranks_in_group of other groups are counted.
    bool is_default = false;
    /// For the first formation, not for reconfigure(). May be empty.
    comm::WhileForming while_forming;
#ifdef C10D_BACKEND_HAS_RECONFIGURE
    c10::intrusive_ptr<c10d::Backend::Options> clone() const override;
#endif
  };

  /// Collective: every rank of the group makes one with the same store, which shrink() uses again.
  /// Throws TimeoutError naming the ranks that did not arrive.
  ProcessGroupFarandole(
      const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
      const c10::intrusive_ptr<Options>& options = c10::make_intrusive<Options>());
  ~ProcessGroupFarandole() override;

  /// Our backend for `group`'s tensors on devices of `type`, also inside what
  /// TORCH_DISTRIBUTED_DEBUG=DETAIL wraps around it; the empty pointer if they go elsewhere.
  static c10::intrusive_ptr<ProcessGroupFarandole> of(c10d::ProcessGroup& group,
                                                      c10::DeviceType type = c10::DeviceType::CPU);

  const std::string getBackendName() const override;
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
  /// The name in messages.
  const std::string& name() const { return name_; }
  /// Whether it was made as the default group, and has its ranks yet.
  bool is_default() const { return options_->is_default; }
  /// What tensors on devices of `type` travel through; null if nothing serves them, after
  /// shutdown(), and of accelerators before the first call on one and where they are staged.
  std::shared_ptr<comm::Communicator> communicator(c10::DeviceType type) const;
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
  /// Splits count rows of dimension 0; all ranks give splits, or none does for equal parts.
  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                     std::vector<int64_t>& input_splits,
                     const c10d::AllToAllOptions& opts) override;
  Work alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  Work barrier(const c10d::BarrierOptions& opts) override;

  /// As barrier(), on this thread. Whether `wait_all_ranks` or not: rank 0 names all ranks that did
  /// not come in time.
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;
  /// Sparse COO tensors, SUM and AVG; allreduce() of such a tensor comes here. It leaves the tensor
  /// coalesced.
  Work allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;

  Work send(Tensors& tensors, int destination, int tag) override;
  Work recv(Tensors& tensors, int source, int tag) override;
  /// The Work's sourceRank() tells from whom, once it is done. Not on accelerators.
  Work recvAnysource(Tensors& tensors, int tag) override;

  /// Calls until endCoalescing() are ended by its Work. Transfers of accelerators among them become
  /// one operation, so that ranks may send to each other before they receive. Only with an
  /// accelerator does torch's batch_isend_irecv() use it.
  bool supportsCoalescing() const override;
  void startCoalescing() override;
  Work endCoalescing() override;
  /// Connects the ranks on their accelerators now. Collective.
  void eagerConnectSingleDevice(at::Device device) override;

  bool supportsSplitting() const override { return true; }
  /// A group of `ranks` of this one, in that order; null on a rank that is not in it. Collective
  /// for those that are.
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;
  bool supportsShrinking() const override { return true; }
  /// A group of the ranks of this one that are not excluded, in the same order; collective for
  /// them, also after a failure. `shrink_flags` 1 aborts this group first. Throws InvalidArgument,
  /// TimeoutError naming the ranks that did not arrive, SystemError if the store is gone.
  c10::intrusive_ptr<c10d::Backend> shrink(
      const std::vector<int64_t>& ranks_to_exclude, int shrink_flags = 0,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts = nullptr) override;
  /// A group of `size` ranks of any groups that meet in `store`. Collective.
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& opts,
                                          const int& rank, const int& size) override;

  /// A group of all ranks of this one for a part of the program that has its own order of
  /// collectives; `purpose` ends its name in messages. It ends when this one is aborted or shut
  /// down. Collective.
  c10::intrusive_ptr<ProcessGroupFarandole> duplicate(const std::string& purpose);
  /// The same of the ranks on this rank's host alone, in their order. Collective; each host gets a
  /// group of its own.
  c10::intrusive_ptr<ProcessGroupFarandole> duplicate_on_host(const std::string& purpose);

  /// Uninitialized memory for collectives that copy nothing in or out: see symmetric_empty().
  at::Tensor allocate_symmetric(at::IntArrayRef sizes, at::ScalarType dtype);
  /// Symmetric memory in torch's words: a collective, with the same `size` in elements and dtype on
  /// every rank. On an accelerator NCCL has registered it, where NCCL serves the group, so
  /// collectives copy less; its release makes the host wait for the device. FSDP2 can be told to
  /// ask for it, and gets it for the CPU alone (an index of a device is an accelerator's), since it
  /// allocates in each step. There is no getMemAllocator(): a pool allocates when it likes, on one
  /// rank alone.
  bool supportsTensorAlloc(c10::DeviceIndex device) override { return device < 0; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  bool supportsTimeEstimation() const override { return true; }
  /// From now on collectives, sends and receives of this rank are not run: their Works are done,
  /// their outputs keep what they hold, and endTimeEstimate() tells how many microseconds they
  /// would have taken (see process_group/time_estimator.h for the model). The first call in a group
  /// is a collective, which measures it for some 20 ms; later ones are local. One that follows
  /// another without an end begins anew. (Virtual functions of c10d::Backend since torch 2.15.)
  void startTimeEstimate();
  /// Throws InvalidArgument if nothing was started.
  float endTimeEstimate();

#ifdef C10D_BACKEND_HAS_RECONFIGURE
  bool supportsReconfigure() const override { return true; }
  /// Names this rank of this group to its peers; another after each reconfigure().
  c10d::ReconfigureHandle get_reconfigure_handle() const override;
  /// Gives the group other ranks: those of opts.handles, in that order; of a set those that belong
  /// to a group already come first, in the order of their ranks. Collective for them, also after a
  /// failure, and for ranks made with Options::enable_reconfigure, which have no peers before. What
  /// is pending is aborted. They meet in the store that the group was made with. Throws
  /// InvalidArgument, TimeoutError naming the positions that did not arrive, SystemError if the
  /// store is gone; then the group has no ranks until it is called again with another uuid.
  Work reconfigure(const c10d::ReconfigureOptions& opts) override;
#endif

#ifdef C10D_BACKEND_HAS_WINDOW
  bool supportsWindow() const override { return true; }
  /// One-sided writes straight into symmetric memory of the peers, and signals. Collective, with a
  /// tensor on all ranks or on none. See process_group/window.h.
  c10::intrusive_ptr<c10d::Window> new_window(const std::optional<at::Tensor>& tensor) override;
#endif

#ifdef C10D_BACKEND_HAS_HOOKS
  /// Abort hooks are called once when this rank aborts, or when a collective hears that a peer has,
  /// before a call of this rank fails of that: on the thread that met the error, while peers go on
  /// to theirs. They may abort themselves; others that abort meanwhile wait for them.
  bool supportsAbortHooks() const override { return true; }
  void registerAbortHook(int64_t hook_id, c10d::AbortHook hook) override;
  void unregisterAbortHook(int64_t hook_id) override;
  /// Completion hooks are called by the thread that ran the collective or that finds a transfer
  /// done, before its Work is. They always tell how long it ran, waiting for peers included.
  bool supportsCompletionHooks() const override { return true; }
  void registerCompletionHook(int64_t hook_id, c10d::CompletionHook hook) override;
  void unregisterCompletionHook(int64_t hook_id) override;
#endif

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
  /// Calls shutdown() when the last owner is gone: another group's weak pointer may delay the
  /// destructor.
  void release_resources() override;

 private:
  using Body = std::function<void(comm::Communicator&, const comm::CollectiveOptions&)>;

  struct Caller caller(const Operation& operation) const;
  bool in_creator() const;
  std::shared_ptr<GroupCommunicators> communicators() const;
  std::shared_ptr<GroupCommunicators> present_communicators() const;
  std::shared_ptr<GroupCommunicators> form(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                           int size, std::chrono::milliseconds formation_timeout,
                                           comm::WhileForming while_forming);
  void end_membership(const std::string& reason);
  std::vector<c10::intrusive_ptr<c10d::Backend>> live_duplicates();
  c10::intrusive_ptr<ProcessGroupFarandole> make_duplicate(const std::string& purpose,
                                                           const std::string& place, int rank,
                                                           int size);
  Work launch(Call call, Body body);
  template <class Begin>
  Work begin_transfer(const Operation& operation, const Tensors& tensors, const at::Tensor& flat,
                      const at::Tensor& target, const Begin& begin);
  Work receive_from(const Operation& operation, Tensors& tensors, int source, int tag);
  Work launch_transfers(const Operation& operation, std::vector<DeviceTransfer> transfers);
  Work transfer_on_device(const Operation& operation, DeviceTransfer transfer);

  /// Who owns it can be told by its address; torch writes names of new groups into it.
  const c10::intrusive_ptr<Options> options_;
  const std::string name_;
  const std::unique_ptr<comm::ForkGuard> fork_guard_;
  c10::intrusive_ptr<c10d::Store> store_;  ///< where the present ranks have met
  const std::shared_ptr<GroupHooks> hooks_;
  const std::unique_ptr<Coalescing> coalescing_;
  const std::shared_ptr<std::atomic<c10d::ErrorType>> error_;  ///< the first of these ranks
  comm::Topology topology_;
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  const c10::intrusive_ptr<c10d::Store> first_store_;  ///< where reconfigure() meets
  std::string generation_;  ///< tells handles before and after a reconfigure() apart
  const std::string instance_;
#endif
  mutable std::mutex mutex_;
  std::shared_ptr<GroupCommunicators> communicators_;  // guarded by mutex_; null without ranks
  std::vector<c10::weak_intrusive_ptr<c10d::Backend>> duplicates_;  // guarded by mutex_
  int made_duplicates_ = 0;  // guarded by mutex_; of the present ranks
  std::atomic<bool> shut_down_{false};
};

}  // namespace farandole
