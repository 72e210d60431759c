// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "farandole/comm/communicator.h"
#include "farandole/export.h"
#include "farandole/process_group/init.h"
#include "farandole/process_group/process_group.h"

namespace farandole {

/// The ranks that hold replicas of one model, and what they say to each other about it.
///
/// Over our own backend it is a group apart, so that nothing here comes between the program's own
/// collectives; over any other it is the program's group itself.
/// Threads: one call at a time. Every call but the plain questions is a collective.
class FARANDOLE_API ReplicaGroup {
 public:
  /// `group`: of any backend; the default group if empty. `purpose` goes into the name of the group
  /// apart. Collective.
  explicit ReplicaGroup(const Group& group = {}, const std::string& purpose = "ddp");
  /// The ranks of `all` on this rank's host, as a group apart of CPU tensors; null if `all` is not
  /// over our own backend. Collective.
  static std::shared_ptr<ReplicaGroup> of_host(const ReplicaGroup& all, const std::string& purpose);

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  /// The host of each rank, as numbers; empty over another backend.
  const std::vector<int>& host_of_rank() const;
  /// As messages call it.
  const std::string& name() const { return name_; }
  /// The group that the program gave.
  const Group& of_program() const { return of_program_; }
  /// The one to talk through.
  const Group& group() const { return group_; }
  /// How long a collective of the program's group waits.
  std::chrono::milliseconds timeout() const;
  /// Whether collectives of tensors on devices of `type` may run that the ranks have not compared
  /// before: NCCL's, in a communicator apart from that of the CPU. The same on all ranks.
  bool has_uncompared(c10::DeviceType type) const;
  /// Collectives that this rank has started in the program's group; 0 if its backend does not
  /// count.
  uint64_t started_by_program() const;
  /// Our communicator below it for data in host memory, if ranks share memory: then it takes calls
  /// at any time. Null elsewhere, where what was started is still under way.
  std::shared_ptr<comm::Communicator> shared_communicator() const;
  /// Throws as comm::Communicator's, if it is over our own backend. Local; any thread.
  void check_alive() const;
  /// What its ranks share, if each maps the memory of the others; null if not. Keeps the
  /// communicator alive.
  std::shared_ptr<comm::SharedMemory> shared_memory() const;

  /// Zeros on `device`, an accelerator: memory that collectives of the group know, if they are ours
  /// and there is any. Its release makes the host wait for the device. Collective.
  at::Tensor zeros(int64_t bytes, at::Device device) const;

  /// Tensors of rank `root` to all ranks, few large messages for many tensors; in place. Tensors of
  /// any dtypes and devices that the group serves.
  void broadcast(const std::vector<at::Tensor>& tensors, int root = 0) const;
  /// `numbers` of rank `root`, which all ranks have as many of.
  std::vector<int64_t> broadcast(std::vector<int64_t> numbers, int root = 0) const;
  /// Equally many bytes of every rank, in rank order. `timeout`: nullopt: the group's.
  std::vector<std::byte> all_gather(
      const std::vector<std::byte>& bytes,
      std::optional<std::chrono::milliseconds> timeout = std::nullopt) const;
  /// As many numbers of every rank. As numbers: ranks that are in another collective differ in the
  /// dtype.
  std::vector<double> all_gather(const std::vector<double>& numbers) const;
  /// `bytes` bytes from `own` of every rank to `all`, in rank order. Among ranks that share memory
  /// at once, whatever else is under way in the group, and without a tensor or an allocation.
  void exchange(const void* own, void* all, size_t bytes) const;
  /// A number of every rank.
  std::vector<uint64_t> all_gather(uint64_t number) const;
  /// A text of every rank, of any lengths.
  std::vector<std::string> all_gather(const std::string& text) const;

 private:
  ReplicaGroup(const Group& of_program, c10::intrusive_ptr<ProcessGroupFarandole> own);
  void send(const at::Tensor& message, int root) const;
  at::Tensor gather(const at::Tensor& own, std::optional<std::chrono::milliseconds> timeout) const;
  /// On the device that the group's messages travel from.
  at::Tensor message(const void* data, size_t bytes) const;

  Group of_program_;
  c10::intrusive_ptr<ProcessGroupFarandole> own_;  ///< null over another backend
  Group group_;
  int rank_;
  int world_size_;
  std::string name_;
  at::Device device_;
};

}  // namespace farandole
