// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <memory>
#include <string>
#include <vector>

#include "farandole/comm/communicator.h"

namespace farandole {

/// The collectives and messages of a communicator on host memory, for the memory of an accelerator:
/// inputs are copied to pinned host memory, which torch keeps for the next calls, and results back.
///
/// A call waits on the host for its inputs and for the other ranks, and returns when the copies of
/// its results are enqueued. Errors are those of the communicator on host memory; after one no
/// output has been written.
///
/// Threads: as the other communicator's, with `stream` as the current one.
/// Streams: copies run on `stream`.
class StagedCommunicator final : public comm::Communicator {
 public:
  StagedCommunicator(std::shared_ptr<comm::Communicator> host, const c10::Stream& stream);
  ~StagedCommunicator() override;

  /// That of the host's, which gets what its callers prepare for it.
  comm::MemoryKind memory_kind() const override { return host_->memory_kind(); }

  void all_reduce(const void* input, void* output, size_t count, comm::DataType dtype,
                  comm::ReduceOp op, const comm::CollectiveOptions& options) override;
  void reduce_scatter(const void* input, void* output, size_t count, comm::DataType dtype,
                      comm::ReduceOp op, const comm::CollectiveOptions& options) override;
  void all_gather(const void* input, void* output, size_t count, comm::DataType dtype,
                  const comm::CollectiveOptions& options) override;
  void broadcast(void* buffer, size_t count, comm::DataType dtype, int root,
                 const comm::CollectiveOptions& options) override;
  void reduce(const void* input, void* output, size_t count, comm::DataType dtype,
              comm::ReduceOp op, int root, const comm::CollectiveOptions& options) override;
  void gather(const void* input, void* output, size_t count, comm::DataType dtype, int root,
              const comm::CollectiveOptions& options) override;
  void scatter(const void* input, void* output, size_t count, comm::DataType dtype, int root,
               const comm::CollectiveOptions& options) override;
  void all_to_all(const void* input, void* output, size_t count, comm::DataType dtype,
                  const comm::CollectiveOptions& options) override;
  void all_to_all_v(const void* input, const size_t* send_counts, void* output,
                    const size_t* receive_counts, comm::DataType dtype,
                    const comm::CollectiveOptions& options) override;
  void barrier(const comm::CollectiveOptions& options) override;

  /// Messages of accelerators and of the host never match each other: which is sent first would
  /// depend on the device.
  std::shared_ptr<comm::Transfer> send(const void* data, size_t bytes, int destination,
                                       uint64_t tag,
                                       const comm::CollectiveOptions& options) override;
  /// When it is done, the message is on the host; deliver() brings it to the device.
  std::shared_ptr<comm::Transfer> receive(void* data, size_t bytes, int source, uint64_t tag,
                                          const comm::CollectiveOptions& options) override;
  /// Enqueues the copy of what a transfer of this communicator has received; nothing for a send.
  void deliver(comm::Transfer& done) const;

  void check_usable() const override { host_->check_usable(); }
  void check_alive() const override { host_->check_alive(); }
  void check_joins(const std::function<bool(int rank)>& is_missed) override {
    host_->check_joins(is_missed);
  }
  void abort(const std::string& reason) override { host_->abort(reason); }
  void set_timeout(std::chrono::milliseconds timeout) override { host_->set_timeout(timeout); }
  std::unique_ptr<comm::Communicator> shrink(const std::vector<int>& excluded,
                                             comm::Store& store) override {
    return host_->shrink(excluded, store);
  }

 private:
  class Message;

  size_t ranks() const { return static_cast<size_t>(world_size()); }
  size_t own_rank() const { return static_cast<size_t>(rank()); }
  at::Tensor on_device(const void* data, size_t bytes) const;
  at::Tensor fetched(const void* data, size_t bytes) const;
  void fetch(const void* data, const at::Tensor& to, size_t offset, size_t bytes) const;
  void store(const at::Tensor& from, size_t offset, void* data, size_t bytes) const;

  const std::shared_ptr<comm::Communicator> host_;
  const c10::Stream stream_;
};

}  // namespace farandole
