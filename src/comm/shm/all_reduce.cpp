// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>

#include "comm/arguments.h"
#include "comm/shm/shared_memory_communicator.h"
#include "kernels/reduce_kernels.h"

namespace farandole::comm::shm {
namespace {

/// Elements of [begin, end) that one rank reduces.
struct Shard {
  size_t begin;
  size_t end;
};

/// Shards of `per_shard` elements each, the last ones shorter or empty.
Shard shard_of(int rank, size_t per_shard, size_t length) {
  const size_t begin = std::min(static_cast<size_t>(rank) * per_shard, length);
  return {begin, std::min(begin + per_shard, length)};
}

/// Elements per chunk: as many chunks as the slot demands, all about equal, of whole cache lines.
size_t even_chunk(size_t count, size_t slot_bytes, size_t element_bytes) {
  const size_t line = kCacheLine / element_bytes;
  const size_t chunks = pieces_of(count * element_bytes, slot_bytes);
  return pieces_of(pieces_of(count, chunks), line) * line;
}

/// Elements per shard of `length` elements: whole cache lines, so that no two ranks write one.
size_t shard_elements(size_t length, int world_size, size_t element_bytes) {
  const size_t line = kCacheLine / element_bytes;
  const size_t even = pieces_of(length, static_cast<size_t>(world_size));
  return pieces_of(even, line) * line;
}

}  // namespace

void SharedMemoryCommunicator::all_reduce(const void* input, void* output, size_t count,
                                          DataType dtype, ReduceOp op,
                                          const CollectiveOptions& options) {
  Call call = begin(OpKind::kAllReduce, count, dtype, options);
  call.signature.reduce_op = op;
  check_all_reduce(input, output, count, dtype, op);
  if (call.bytes() <= kInlineBytes || world_size() == 1) {
    enter(call, input, std::min(call.bytes(), kInlineBytes));
    reduce_for_oneself(call, input, output);
  } else {
    slotted_all_reduce(call, static_cast<const std::byte*>(input), static_cast<std::byte*>(output));
  }
  finish(call);
}

/// Every rank reads all ranks' tensors, from their headers or slots, and its own from its place. (P
/// + 1) * S bytes read or written by each rank.
void SharedMemoryCommunicator::reduce_for_oneself(const Call& call, const void* input,
                                                  void* output) const {
  const bool travels_inline = call.bytes() <= kInlineBytes;
  std::array<const void*, kMaxRanks> sources;
  for (int peer = 0; peer < world_size(); ++peer) {
    const void* slot = travels_inline ? lockstep_.inline_data_of(peer) : staging_.slot(peer);
    sources[static_cast<size_t>(peer)] = peer == rank() ? input : slot;
  }
  comm::reduce({sources.data(), static_cast<size_t>(world_size())}, {&output, 1}, call.count(),
               call.signature.dtype, call.signature.reduce_op);
}

/// Rank r reads shard r of all ranks' inputs and writes it into all ranks' outputs: no copy, two
/// barriers, 2 * S bytes read or written by each rank.
void SharedMemoryCommunicator::symmetric_all_reduce(const Call& call) {
  const size_t size = call.element_bytes;
  const Shard shard =
      shard_of(rank(), shard_elements(call.count(), world_size(), size), call.count());
  std::array<const void*, kMaxRanks> sources;
  std::array<void*, kMaxRanks> destinations;
  for (int peer = 0; peer < world_size(); ++peer) {
    const auto index = static_cast<size_t>(peer);
    sources[index] = peer_address(peer, &Signature::input) + shard.begin * size;
    destinations[index] = peer_address(peer, &Signature::output) + shard.begin * size;
  }
  const auto world = static_cast<size_t>(world_size());
  comm::reduce({sources.data(), world}, {destinations.data(), world}, shard.end - shard.begin,
               call.signature.dtype, call.signature.reduce_op);
  step(call);
}

/// Chunk by chunk: fill (copy all shards but one's own into one's slot), reduce (one's own shard,
/// from one's input and the peers' slots, into the output and the hole that fill left), drain (copy
/// the peers' reduced shards out of their holes). Chunk i + 1 is filled before the barrier that
/// ends the reduction of chunk i, so there is one barrier a chunk. 4 * S bytes read or written by
/// each of two ranks.
///
/// A slow rank may still drain chunk i while its owner fills chunk i + 2; see Staging on why those
/// do not overlap.
struct SharedMemoryCommunicator::StagedAllReduce {
  SharedMemoryCommunicator& group;
  const Call& call;
  const std::byte* input;
  std::byte* output;
  size_t chunk_elements = even_chunk(call.count(), group.staging_.slot_bytes(), call.element_bytes);
  size_t per_shard = shard_elements(std::min(chunk_elements, call.count()), group.world_size(),
                                    call.element_bytes);

  size_t chunks() const { return pieces_of(call.count(), chunk_elements); }

  size_t length_of(size_t chunk) const {
    return std::min(chunk_elements, call.count() - chunk * chunk_elements);
  }
  size_t bytes(size_t elements) const { return elements * call.element_bytes; }

  void fill(size_t chunk) const {
    const size_t length = length_of(chunk);
    const Shard hole = shard_of(group.rank(), per_shard, length);
    const std::byte* from = input + bytes(chunk * chunk_elements);
    std::byte* slot = group.staging_.slot(group.rank());
    std::memcpy(slot, from, bytes(hole.begin));
    std::memcpy(slot + bytes(hole.end), from + bytes(hole.end), bytes(length - hole.end));
  }

  void reduce(size_t chunk) const {
    const Shard own = shard_of(group.rank(), per_shard, length_of(chunk));
    const size_t offset = bytes(chunk * chunk_elements + own.begin);
    std::array<const void*, kMaxRanks> sources;
    for (int peer = 0; peer < group.world_size(); ++peer) {
      sources[static_cast<size_t>(peer)] =
          peer == group.rank() ? input + offset : group.staging_.slot(peer) + bytes(own.begin);
    }
    std::array<void*, 2> targets{output + offset,
                                 group.staging_.slot(group.rank()) + bytes(own.begin)};
    comm::reduce({sources.data(), static_cast<size_t>(group.world_size())}, {targets.data(), 2},
                 own.end - own.begin, call.signature.dtype, call.signature.reduce_op);
  }

  void drain(size_t chunk, size_t place) const {
    for (int peer = 0; peer < group.world_size(); ++peer) {
      if (peer == group.rank()) continue;
      const Shard shard = shard_of(peer, per_shard, length_of(chunk));
      std::memcpy(output + bytes(chunk * chunk_elements + shard.begin),
                  group.staging_.slot(peer, place) + bytes(shard.begin),
                  bytes(shard.end - shard.begin));
    }
  }
};

void SharedMemoryCommunicator::slotted_all_reduce(Call& call, const std::byte* input,
                                                  std::byte* output) {
  const bool direct = reads_all_slots(call.bytes());
  const StagedAllReduce staged{*this, call, input, output};
  if (call.bytes() > symmetric_from_) {
    call.signature.input = symmetric_->place_of(input, call.bytes()).word();
    call.signature.output = symmetric_->place_of(output, call.bytes()).word();
  }
  const size_t slot_bytes = direct ? call.bytes() : staged.bytes(staged.length_of(0));
  const bool symmetric = enter(call, slot_bytes, [&] {
    if (direct) {
      std::memcpy(staging_.slot(rank()), input, call.bytes());
    } else {
      staged.fill(0);
    }
  });
  if (symmetric) return symmetric_all_reduce(call);
  if (direct) return reduce_for_oneself(call, input, output);
  for (size_t chunk = 0; chunk < staged.chunks(); ++chunk) {
    staged.reduce(chunk);
    const size_t place = staging_.place();
    if (chunk + 1 < staged.chunks()) {
      staging_.next_turn(staged.bytes(staged.length_of(chunk + 1)));
      staged.fill(chunk + 1);
    }
    step(call);
    staged.drain(chunk, place);
  }
}

/// Whether reading all slots, (P - 1) * S foreign bytes, costs less than sharing the work: 2 * S *
/// (P - 1) / P foreign bytes and a second barrier.
bool SharedMemoryCommunicator::reads_all_slots(size_t bytes) const {
  constexpr size_t kMost = size_t{256} * 1024;  // beyond, slots leave the second-level cache
  if (bytes > std::min(kMost, staging_.slot_bytes())) return false;
  const auto peers = static_cast<size_t>(world_size()) - 1;
  return peers * bytes <= 2 * bytes * peers / (peers + 1) + barrier_bytes_;
}

}  // namespace farandole::comm::shm
