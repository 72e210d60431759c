// SPDX-License-Identifier: Apache-2.0
// The collectives that pass blocks from rank to rank. On symmetric memory above a size, blocks go
// straight between the ranks' tensors; else chunk by chunk through the slots: each rank fills its
// slot, all meet, each rank drains the slots that it needs. One barrier a chunk.
#include <algorithm>
#include <array>
#include <cstring>

#include "comm/arguments.h"
#include "comm/shm/shared_memory_communicator.h"
#include "kernels/reduce_kernels.h"

namespace farandole::comm::shm {
namespace {

void copy_bytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes != 0 && to != from) std::memcpy(to, from, bytes);
}

using SourceArray = std::array<const void*, kMaxRanks>;

}  // namespace

/// What this rank has for the others.
struct SharedMemoryCommunicator::Blocks {
  const std::byte* input = nullptr;  ///< null: this rank has nothing
  bool one_each = false;  ///< a block for each rank in a row; else one that every reader takes
  bool fills = true;      ///< whether others read them; own blocks pass through no slot anyway
};

/// drain(offset, length, sources): elements [offset, offset + length) of this rank's block lie at
/// sources[p] for every rank p that filled. Returns false if nothing passed through the slots,
/// because all ranks announced symmetric memory.
template <class Drain>
bool SharedMemoryCommunicator::exchange(Call& call, const Blocks& blocks, const Drain& drain) {
  const size_t size = call.element_bytes;
  const int parts = blocks.one_each ? std::max(1, world_size() - 1) : 1;
  const size_t part = staging_.slot_bytes() / static_cast<size_t>(parts) / size;
  const auto length_at = [&](size_t offset) { return std::min(part, call.count() - offset); };
  const auto slot_bytes = [&](size_t offset) {
    return static_cast<size_t>(parts) * length_at(offset) * size;
  };
  const auto in_slot = [&](int from, int to, size_t length) {
    const int place = !blocks.one_each ? 0 : to < from ? to : to - 1;
    return staging_.slot(from) + static_cast<size_t>(place) * length * size;
  };
  const auto in_input = [&](int to, size_t offset) {
    if (blocks.input == nullptr) return blocks.input;
    const size_t block = blocks.one_each ? static_cast<size_t>(to) : 0;
    return blocks.input + (block * call.count() + offset) * size;
  };
  const auto fill = [&](size_t offset) {
    if (blocks.input == nullptr || !blocks.fills) return;
    const size_t length = length_at(offset);
    for (int peer = 0; peer < world_size(); ++peer) {
      if (peer == rank()) continue;
      copy_bytes(in_slot(rank(), peer, length), in_input(peer, offset), length * size);
      if (!blocks.one_each) break;
    }
  };
  if (enter(call, slot_bytes(0), [&] { fill(0); })) return false;
  SourceArray sources;
  for (size_t offset = 0; offset < call.count(); offset += part) {
    const size_t length = length_at(offset);
    for (int peer = 0; peer < world_size(); ++peer) {
      sources[static_cast<size_t>(peer)] =
          peer == rank() ? in_input(peer, offset) : in_slot(peer, rank(), length);
    }
    drain(offset, length, sources);
    if (offset + part >= call.count()) break;
    staging_.next_turn(slot_bytes(offset + part));
    fill(offset + part);
    step(call);
  }
  return true;
}

/// Block of rank p goes to block p of `output`, or, with `only_from`, that rank's block to
/// `output`.
bool SharedMemoryCommunicator::move_blocks(Call& call, const Blocks& blocks, std::byte* output,
                                           int only_from) {
  const size_t size = call.element_bytes;
  return exchange(call, blocks, [&](size_t offset, size_t length, const SourceArray& sources) {
    if (output == nullptr) return;
    for (int peer = 0; peer < world_size(); ++peer) {
      if (only_from >= 0 && peer != only_from) continue;
      const size_t block = only_from >= 0 ? 0 : static_cast<size_t>(peer);
      copy_bytes(output + (block * call.count() + offset) * size,
                 static_cast<const std::byte*>(sources[static_cast<size_t>(peer)]), length * size);
    }
  });
}

/// The reduction of all ranks' blocks goes to `output`; nowhere if it is null.
bool SharedMemoryCommunicator::reduce_blocks(Call& call, const Blocks& blocks, std::byte* output) {
  const size_t size = call.element_bytes;
  return exchange(call, blocks, [&](size_t offset, size_t length, const SourceArray& sources) {
    if (output == nullptr) return;
    void* target = output + offset * size;
    comm::reduce({sources.data(), static_cast<size_t>(world_size())}, {&target, 1}, length,
                 call.signature.dtype, call.signature.reduce_op);
  });
}

/// Announces `data` as this rank's place in symmetric memory if going there straight pays.
void SharedMemoryCommunicator::offer_symmetric(Call& call, const void* data, size_t bytes) const {
  if (call.bytes() <= symmetric_from_) return;
  call.signature.input = call.signature.output = symmetric_->place_of(data, bytes).word();
}

void SharedMemoryCommunicator::all_gather(const void* input, void* output, size_t count,
                                          DataType dtype, const CollectiveOptions& options) {
  Call call = begin(OpKind::kAllGather, count, dtype, options);
  const auto world = static_cast<size_t>(world_size());
  const auto* in = static_cast<const std::byte*>(input);
  auto* out = static_cast<std::byte*>(output);
  check_all_gather(topology(), input, output, count, dtype);
  const size_t own = call.bytes() * static_cast<size_t>(rank());
  offer_symmetric(call, output, call.bytes() * world);
  if (!move_blocks(call, {in}, out)) {
    for (int peer = 0; peer < world_size(); ++peer) {
      copy_bytes(peer_address(peer, &Signature::output) + own, in, call.bytes());
    }
    step(call);
  }
  finish(call);
}

void SharedMemoryCommunicator::gather(const void* input, void* output, size_t count, DataType dtype,
                                      int root, const CollectiveOptions& options) {
  Call call = begin(OpKind::kGather, count, dtype, options);
  call.signature.root = root;
  const auto* in = static_cast<const std::byte*>(input);
  auto* out = rank() == root ? static_cast<std::byte*>(output) : nullptr;
  check_gather(topology(), input, output, count, dtype, root);
  move_blocks(call, {in, false, rank() != root}, out);
  finish(call);
}

void SharedMemoryCommunicator::broadcast(void* buffer, size_t count, DataType dtype, int root,
                                         const CollectiveOptions& options) {
  Call call = begin(OpKind::kBroadcast, count, dtype, options);
  call.signature.root = root;
  auto* data = static_cast<std::byte*>(buffer);
  check_broadcast(topology(), buffer, count, dtype, root);
  offer_symmetric(call, buffer, call.bytes());
  const bool is_root = rank() == root;
  if (!move_blocks(call, {is_root ? data : nullptr}, is_root ? nullptr : data, root)) {
    if (!is_root) copy_bytes(data, peer_address(root, &Signature::input), call.bytes());
    step(call);
  }
  finish(call);
}

void SharedMemoryCommunicator::scatter(const void* input, void* output, size_t count,
                                       DataType dtype, int root, const CollectiveOptions& options) {
  Call call = begin(OpKind::kScatter, count, dtype, options);
  call.signature.root = root;
  const auto* in = rank() == root ? static_cast<const std::byte*>(input) : nullptr;
  check_scatter(topology(), input, output, count, dtype, root);
  move_blocks(call, {in, true}, static_cast<std::byte*>(output), root);
  finish(call);
}

void SharedMemoryCommunicator::all_to_all(const void* input, void* output, size_t count,
                                          DataType dtype, const CollectiveOptions& options) {
  Call call = begin(OpKind::kAllToAll, count, dtype, options);
  check_all_to_all(topology(), input, output, count, dtype);
  move_blocks(call, {static_cast<const std::byte*>(input), true}, static_cast<std::byte*>(output));
  finish(call);
}

void SharedMemoryCommunicator::reduce_scatter(const void* input, void* output, size_t count,
                                              DataType dtype, ReduceOp op,
                                              const CollectiveOptions& options) {
  Call call = begin(OpKind::kReduceScatter, count, dtype, options);
  call.signature.reduce_op = op;
  const auto world = static_cast<size_t>(world_size());
  const auto* in = static_cast<const std::byte*>(input);
  auto* out = static_cast<std::byte*>(output);
  check_reduce_scatter(topology(), input, output, count, dtype, op);
  const size_t own = call.bytes() * static_cast<size_t>(rank());
  offer_symmetric(call, input, call.bytes() * world);
  if (!reduce_blocks(call, {in, true}, out)) {
    SourceArray sources;
    for (int peer = 0; peer < world_size(); ++peer) {
      sources[static_cast<size_t>(peer)] = peer_address(peer, &Signature::input) + own;
    }
    comm::reduce({sources.data(), world}, {&output, 1}, count, dtype, op);
    step(call);
  }
  finish(call);
}

void SharedMemoryCommunicator::reduce(const void* input, void* output, size_t count, DataType dtype,
                                      ReduceOp op, int root, const CollectiveOptions& options) {
  Call call = begin(OpKind::kReduce, count, dtype, options);
  call.signature.reduce_op = op;
  call.signature.root = root;
  const auto* in = static_cast<const std::byte*>(input);
  auto* out = rank() == root ? static_cast<std::byte*>(output) : nullptr;
  check_reduce(topology(), input, output, count, dtype, op, root);
  reduce_blocks(call, {in, false, rank() != root}, out);
  finish(call);
}

}  // namespace farandole::comm::shm
