// SPDX-License-Identifier: Apache-2.0
#include "comm/arguments.h"

#include <cstdint>
#include <limits>
#include <string>

#include "farandole/error.h"
#include "kernels/reduce_kernels.h"

namespace farandole::comm {
namespace {

/// `count` elements, `copies` times, must be countable in bytes.
void check_count(OpKind operation, size_t count, size_t copies, DataType dtype) {
  constexpr size_t kMost = static_cast<size_t>(std::numeric_limits<int64_t>::max());
  if (count <= kMost / copies / size_of(dtype)) return;
  throw InvalidArgument(
      "count-too-large",
      std::string(name_of(operation)) + " of " + std::to_string(count) + " elements is too large.",
      "its size in bytes does not fit into 63 bits.",
      "check for a negative or uninitialized count.");
}

void check_root(OpKind operation, int root, const Topology& topology) {
  if (root >= 0 && root < topology.world_size) return;
  throw InvalidArgument(
      "invalid-root",
      std::string(name_of(operation)) + " was called with root=" + std::to_string(root) + ".",
      "the group has ranks 0 to " + std::to_string(topology.world_size - 1) + ".",
      "pass the root's rank in this group.");
}

/// `data` may be null only if there is nothing in it.
void check_buffer(OpKind operation, const char* role, const void* data, size_t bytes) {
  if (data != nullptr || bytes == 0) return;
  throw InvalidArgument(
      "missing-buffer", std::string(name_of(operation)) + " was called without " + role + ".",
      "the pointer is null but " + std::to_string(bytes) + " bytes were to be read or written.",
      "pass a buffer of that size.");
}

/// Two buffers must be apart, unless the second starts exactly at `in_place`.
void check_overlap(OpKind operation, const void* input, size_t input_bytes, const void* output,
                   size_t output_bytes, const void* in_place) {
  const auto in = reinterpret_cast<uintptr_t>(input);
  const auto out = reinterpret_cast<uintptr_t>(output);
  const bool apart = in + input_bytes <= out || out + output_bytes <= in;
  if (apart || output == in_place || input_bytes == 0 || output_bytes == 0) return;
  throw InvalidArgument(
      "input-output-overlap", std::string(name_of(operation)) + ": input and output overlap.",
      "they must be separate, or at the in-place position of the operation.",
      "use separate buffers, or the in-place position that communicator.h gives.");
}

size_t block_bytes(size_t count, DataType dtype) { return count * size_of(dtype); }

size_t blocks(const Topology& topology) { return static_cast<size_t>(topology.world_size); }

/// Where block `rank` of `first` begins.
const std::byte* block_of(const void* first, int rank, size_t bytes) {
  return static_cast<const std::byte*>(first) + bytes * static_cast<size_t>(rank);
}

}  // namespace

void check_all_reduce(const void* input, const void* output, size_t count, DataType dtype,
                      ReduceOp op) {
  constexpr OpKind kind = OpKind::kAllReduce;
  check_count(kind, count, 1, dtype);
  check_reduction(dtype, op);
  const size_t bytes = block_bytes(count, dtype);
  check_buffer(kind, "an input", input, bytes);
  check_buffer(kind, "an output", output, bytes);
  check_overlap(kind, input, bytes, output, bytes, input);
}

void check_reduce_scatter(const Topology& topology, const void* input, const void* output,
                          size_t count, DataType dtype, ReduceOp op) {
  constexpr OpKind kind = OpKind::kReduceScatter;
  check_count(kind, count, blocks(topology), dtype);
  check_reduction(dtype, op);
  const size_t bytes = block_bytes(count, dtype);
  check_buffer(kind, "an input", input, bytes * blocks(topology));
  check_buffer(kind, "an output", output, bytes);
  check_overlap(kind, input, bytes * blocks(topology), output, bytes,
                block_of(input, topology.rank, bytes));
}

void check_all_gather(const Topology& topology, const void* input, const void* output, size_t count,
                      DataType dtype) {
  constexpr OpKind kind = OpKind::kAllGather;
  check_count(kind, count, blocks(topology), dtype);
  const size_t bytes = block_bytes(count, dtype);
  check_buffer(kind, "an input", input, bytes);
  check_buffer(kind, "an output", output, bytes * blocks(topology));
  check_overlap(kind, output, bytes * blocks(topology), input, bytes,
                block_of(output, topology.rank, bytes));
}

void check_broadcast(const Topology& topology, const void* buffer, size_t count, DataType dtype,
                     int root) {
  check_count(OpKind::kBroadcast, count, 1, dtype);
  check_root(OpKind::kBroadcast, root, topology);
  check_buffer(OpKind::kBroadcast, "a buffer", buffer, block_bytes(count, dtype));
}

void check_reduce(const Topology& topology, const void* input, const void* output, size_t count,
                  DataType dtype, ReduceOp op, int root) {
  constexpr OpKind kind = OpKind::kReduce;
  check_count(kind, count, 1, dtype);
  check_root(kind, root, topology);
  check_reduction(dtype, op);
  const size_t bytes = block_bytes(count, dtype);
  check_buffer(kind, "an input", input, bytes);
  if (topology.rank != root) return;
  check_buffer(kind, "an output on the root", output, bytes);
  check_overlap(kind, input, bytes, output, bytes, input);
}

void check_gather(const Topology& topology, const void* input, const void* output, size_t count,
                  DataType dtype, int root) {
  constexpr OpKind kind = OpKind::kGather;
  check_count(kind, count, blocks(topology), dtype);
  check_root(kind, root, topology);
  const size_t bytes = block_bytes(count, dtype);
  check_buffer(kind, "an input", input, bytes);
  if (topology.rank != root) return;
  check_buffer(kind, "an output on the root", output, bytes * blocks(topology));
  check_overlap(kind, output, bytes * blocks(topology), input, bytes,
                block_of(output, root, bytes));
}

void check_scatter(const Topology& topology, const void* input, const void* output, size_t count,
                   DataType dtype, int root) {
  constexpr OpKind kind = OpKind::kScatter;
  check_count(kind, count, blocks(topology), dtype);
  check_root(kind, root, topology);
  const size_t bytes = block_bytes(count, dtype);
  check_buffer(kind, "an output", output, bytes);
  if (topology.rank != root) return;
  check_buffer(kind, "an input on the root", input, bytes * blocks(topology));
  check_overlap(kind, input, bytes * blocks(topology), output, bytes, block_of(input, root, bytes));
}

void check_all_to_all(const Topology& topology, const void* input, const void* output, size_t count,
                      DataType dtype) {
  constexpr OpKind kind = OpKind::kAllToAll;
  check_count(kind, count, blocks(topology), dtype);
  const size_t bytes = block_bytes(count, dtype) * blocks(topology);
  check_buffer(kind, "an input", input, bytes);
  check_buffer(kind, "an output", output, bytes);
  check_overlap(kind, input, bytes, output, bytes, nullptr);
}

void check_all_to_all_v(const Topology& topology, const void* input, const size_t* send_counts,
                        const void* output, const size_t* receive_counts, DataType dtype) {
  constexpr OpKind kind = OpKind::kAllToAllV;
  const size_t world = blocks(topology);
  for (size_t peer = 0; peer < world; ++peer) {
    check_count(kind, send_counts[peer], world, dtype);
    check_count(kind, receive_counts[peer], world, dtype);
  }
  const size_t sent = sum_of(send_counts, world);
  const size_t received = sum_of(receive_counts, world);
  check_count(kind, sent, 1, dtype);
  check_count(kind, received, 1, dtype);
  check_buffer(kind, "an input", input, block_bytes(sent, dtype));
  check_buffer(kind, "an output", output, block_bytes(received, dtype));
  check_overlap(kind, input, block_bytes(sent, dtype), output, block_bytes(received, dtype),
                nullptr);
}

void check_peer(const char* call, const char* role, int peer, int lowest, int world_size) {
  if (peer >= lowest && peer < world_size) return;
  throw InvalidArgument(
      "invalid-peer",
      std::string(call) + " was called with " + role + "=" + std::to_string(peer) + ".",
      "the group has ranks 0 to " + std::to_string(world_size - 1) + ".",
      "pass the peer's rank in this group.");
}

void check_message(const char* call, const void* data, size_t bytes) {
  if (data != nullptr || bytes == 0) return;
  throw InvalidArgument(
      "missing-buffer", std::string(call) + " was called without a buffer.",
      "the pointer is null but " + std::to_string(bytes) + " bytes were to be read or written.",
      "pass a buffer of that size.");
}

size_t sum_of(const size_t* counts, size_t size) {
  size_t sum = 0;
  for (size_t i = 0; i < size; ++i) sum += counts[i];
  return sum;
}

}  // namespace farandole::comm
