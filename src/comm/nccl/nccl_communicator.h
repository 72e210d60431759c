// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/fork_guard.h"
#include "comm/nccl/handle.h"
#include "comm/nccl/reduction.h"
#include "comm/nccl/registered_memory.h"
#include "farandole/comm/backends.h"
#include "farandole/comm/device_communicator.h"

namespace farandole::comm::nccl {

/// Collectives by NCCL's own; those that NCCL 2.27 lacks are groups of its sends and receives.
///
/// Threads, streams and errors: as device_communicator.h says.
class NcclCommunicator final : public DeviceCommunicator {
 public:
  /// Collective. Throws what make_communicator() lists.
  static std::unique_ptr<Communicator> make(Store& store, const CommunicatorOptions& asked);
  ~NcclCommunicator() override;

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

  void begin_group() override;
  void end_group(const CollectiveOptions& options) override;
  std::shared_ptr<DeviceMemory> allocate(size_t bytes, const CollectiveOptions& options) override;
  std::unique_ptr<DeviceCommunicator> split(const std::vector<int>& ranks,
                                            std::shared_ptr<Communicator> control) override;

  void check_usable() const override;
  void check_alive() const override;
  void abort(const std::string& reason) override;
  void set_timeout(std::chrono::milliseconds timeout) override;
  std::unique_ptr<Communicator> shrink(const std::vector<int>& excluded, Store& store) override;

 private:
  NcclCommunicator(const NcclApi& api, CommunicatorOptions options,
                   const std::shared_ptr<Communicator>& control);
  /// Of the ranks of `control`, connected anew.
  static std::unique_ptr<NcclCommunicator> form(const CommunicatorOptions& options,
                                                const std::shared_ptr<Communicator>& control);
  std::unique_ptr<NcclCommunicator> child_of(const std::shared_ptr<Communicator>& control) const;

  const NcclApi& api() const { return handle_->api(); }
  template <class Call>
  void run(const char* function, const CollectiveOptions& options, const Call& call);
  /// As run(), and `call` gets the operator, too.
  template <class Call>
  void reduce_with(const char* function, const Reduction& reduction, DataType dtype,
                   const CollectiveOptions& options, const Call& call);
  void send_bytes(const void* data, size_t bytes, int to, const CollectiveOptions& options);
  void receive_bytes(void* data, size_t bytes, int from, const CollectiveOptions& options);
  [[noreturn]] void throw_no_memory(size_t bytes, int rank) const;
  std::string call_text(const char* operation) const;
  std::chrono::milliseconds timeout_of(const CollectiveOptions& options) const;

  CommunicatorOptions options_;
  std::atomic<std::chrono::milliseconds> timeout_;
  const ForkGuard fork_guard_;
  std::shared_ptr<Handle> handle_;  ///< shared with memory
  PremultipliedSums premultiplied_sums_;
  std::unique_ptr<RegisteredMemory> barrier_byte_;  ///< made by the first barrier
};

}  // namespace farandole::comm::nccl
