// SPDX-License-Identifier: Apache-2.0
#include "process_group/device/staged_communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>

#include <numeric>
#include <utility>

namespace farandole {
namespace {

using comm::CollectiveOptions;
using comm::DataType;
using comm::ReduceOp;

/// Uninitialized pinned memory. torch's allocator keeps what was released for the next call, and
/// waits for the copies that it was used in.
at::Tensor pinned(size_t bytes) {
  return at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte).pinned_memory(true));
}

std::byte* at_byte(const at::Tensor& tensor, size_t offset = 0) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr()) + offset;
}

/// No int that a program may pass has this bit alone of those from 32 on, or all but it.
constexpr uint64_t kDeviceTag = uint64_t{1} << 40;

}  // namespace

/// A message under way through pinned memory.
class StagedCommunicator::Message final : public comm::Transfer {
 public:
  /// `target` is null for a send.
  Message(std::shared_ptr<comm::Transfer> under_way, at::Tensor on_host, void* target)
      : under_way_(std::move(under_way)), on_host_(std::move(on_host)), target_(target) {}

  bool is_done() override { return under_way_->is_done(); }
  void wait(std::chrono::milliseconds timeout) override { under_way_->wait(timeout); }
  void when_done(std::function<void()> wake) override { under_way_->when_done(std::move(wake)); }
  int peer() const override { return under_way_->peer(); }

  const at::Tensor& on_host() const { return on_host_; }
  void* target() const { return target_; }

 private:
  const std::shared_ptr<comm::Transfer> under_way_;
  const at::Tensor on_host_;
  void* const target_;
};

StagedCommunicator::StagedCommunicator(std::shared_ptr<comm::Communicator> host,
                                       const c10::Stream& stream)
    : Communicator(host->name(), host->topology()), host_(std::move(host)), stream_(stream) {}

StagedCommunicator::~StagedCommunicator() = default;

// ---- Copies

at::Tensor StagedCommunicator::on_device(const void* data, size_t bytes) const {
  // A tensor has no const memory; what is an input is only read.
  return at::for_blob(const_cast<void*>(data), {static_cast<int64_t>(bytes)})
      .options(at::TensorOptions(at::kByte).device(stream_.device()))
      .target_device(stream_.device())
      .make_tensor();
}

at::Tensor StagedCommunicator::fetched(const void* data, size_t bytes) const {
  at::Tensor on_host = pinned(bytes);
  fetch(data, on_host, 0, bytes);
  return on_host;
}

/// Copies to `to` from byte `offset` on, and waits until it is there.
void StagedCommunicator::fetch(const void* data, const at::Tensor& to, size_t offset,
                               size_t bytes) const {
  if (bytes == 0) return;
  to.narrow(0, static_cast<int64_t>(offset), static_cast<int64_t>(bytes))
      .copy_(on_device(data, bytes), /*non_blocking=*/true);
  c10::Event copied(stream_.device_type());
  copied.record(stream_);
  copied.synchronize();
}

void StagedCommunicator::store(const at::Tensor& from, size_t offset, void* data,
                               size_t bytes) const {
  if (bytes == 0) return;
  on_device(data, bytes)
      .copy_(from.narrow(0, static_cast<int64_t>(offset), static_cast<int64_t>(bytes)),
             /*non_blocking=*/true);
}

// ---- Reductions

void StagedCommunicator::all_reduce(const void* input, void* output, size_t count, DataType dtype,
                                    ReduceOp op, const CollectiveOptions& options) {
  const size_t bytes = count * comm::size_of(dtype);
  const at::Tensor on_host = fetched(input, bytes);
  host_->all_reduce(at_byte(on_host), at_byte(on_host), count, dtype, op, options);
  store(on_host, 0, output, bytes);
}

void StagedCommunicator::reduce_scatter(const void* input, void* output, size_t count,
                                        DataType dtype, ReduceOp op,
                                        const CollectiveOptions& options) {
  const size_t bytes = count * comm::size_of(dtype);
  const at::Tensor on_host = fetched(input, ranks() * bytes);
  const size_t own = own_rank() * bytes;
  host_->reduce_scatter(at_byte(on_host), at_byte(on_host, own), count, dtype, op, options);
  store(on_host, own, output, bytes);
}

void StagedCommunicator::reduce(const void* input, void* output, size_t count, DataType dtype,
                                ReduceOp op, int root, const CollectiveOptions& options) {
  const size_t bytes = count * comm::size_of(dtype);
  const at::Tensor on_host = fetched(input, bytes);
  host_->reduce(at_byte(on_host), at_byte(on_host), count, dtype, op, root, options);
  if (rank() == root) store(on_host, 0, output, bytes);
}

// ---- Moves

void StagedCommunicator::all_gather(const void* input, void* output, size_t count, DataType dtype,
                                    const CollectiveOptions& options) {
  const size_t bytes = count * comm::size_of(dtype);
  const at::Tensor on_host = pinned(ranks() * bytes);
  const size_t own = own_rank() * bytes;
  fetch(input, on_host, own, bytes);
  host_->all_gather(at_byte(on_host, own), at_byte(on_host), count, dtype, options);
  store(on_host, 0, output, ranks() * bytes);
}

void StagedCommunicator::broadcast(void* buffer, size_t count, DataType dtype, int root,
                                   const CollectiveOptions& options) {
  const size_t bytes = count * comm::size_of(dtype);
  const at::Tensor on_host = rank() == root ? fetched(buffer, bytes) : pinned(bytes);
  host_->broadcast(at_byte(on_host), count, dtype, root, options);
  if (rank() != root) store(on_host, 0, buffer, bytes);
}

void StagedCommunicator::gather(const void* input, void* output, size_t count, DataType dtype,
                                int root, const CollectiveOptions& options) {
  const size_t bytes = count * comm::size_of(dtype);
  if (rank() != root) {
    host_->gather(at_byte(fetched(input, bytes)), nullptr, count, dtype, root, options);
    return;
  }
  const at::Tensor on_host = pinned(ranks() * bytes);
  const size_t own = own_rank() * bytes;
  fetch(input, on_host, own, bytes);
  host_->gather(at_byte(on_host, own), at_byte(on_host), count, dtype, root, options);
  store(on_host, 0, output, ranks() * bytes);
}

void StagedCommunicator::scatter(const void* input, void* output, size_t count, DataType dtype,
                                 int root, const CollectiveOptions& options) {
  const size_t bytes = count * comm::size_of(dtype);
  if (rank() != root) {
    const at::Tensor on_host = pinned(bytes);
    host_->scatter(nullptr, at_byte(on_host), count, dtype, root, options);
    store(on_host, 0, output, bytes);
    return;
  }
  const at::Tensor on_host = fetched(input, ranks() * bytes);
  const size_t own = own_rank() * bytes;
  host_->scatter(at_byte(on_host), at_byte(on_host, own), count, dtype, root, options);
  store(on_host, own, output, bytes);
}

void StagedCommunicator::all_to_all(const void* input, void* output, size_t count, DataType dtype,
                                    const CollectiveOptions& options) {
  const size_t bytes = ranks() * count * comm::size_of(dtype);
  const at::Tensor sent = fetched(input, bytes);
  const at::Tensor received = pinned(bytes);
  host_->all_to_all(at_byte(sent), at_byte(received), count, dtype, options);
  store(received, 0, output, bytes);
}

void StagedCommunicator::all_to_all_v(const void* input, const size_t* send_counts, void* output,
                                      const size_t* receive_counts, DataType dtype,
                                      const CollectiveOptions& options) {
  const auto bytes_of = [&](const size_t* counts) {
    return std::accumulate(counts, counts + ranks(), size_t{0}) * comm::size_of(dtype);
  };
  const at::Tensor sent = fetched(input, bytes_of(send_counts));
  const at::Tensor received = pinned(bytes_of(receive_counts));
  host_->all_to_all_v(at_byte(sent), send_counts, at_byte(received), receive_counts, dtype,
                      options);
  store(received, 0, output, bytes_of(receive_counts));
}

void StagedCommunicator::barrier(const CollectiveOptions& options) { host_->barrier(options); }

// ---- Messages

std::shared_ptr<comm::Transfer> StagedCommunicator::send(const void* data, size_t bytes,
                                                         int destination, uint64_t tag,
                                                         const CollectiveOptions& options) {
  at::Tensor on_host = fetched(data, bytes);
  auto under_way = host_->send(at_byte(on_host), bytes, destination, tag ^ kDeviceTag, options);
  return std::make_shared<Message>(std::move(under_way), std::move(on_host), nullptr);
}

std::shared_ptr<comm::Transfer> StagedCommunicator::receive(void* data, size_t bytes, int source,
                                                            uint64_t tag,
                                                            const CollectiveOptions& options) {
  at::Tensor on_host = pinned(bytes);
  auto under_way = host_->receive(at_byte(on_host), bytes, source, tag ^ kDeviceTag, options);
  return std::make_shared<Message>(std::move(under_way), std::move(on_host), data);
}

void StagedCommunicator::deliver(comm::Transfer& done) const {
  const auto& message = static_cast<Message&>(done);
  if (message.target() == nullptr) return;
  store(message.on_host(), 0, message.target(), message.on_host().nbytes());
}

}  // namespace farandole
