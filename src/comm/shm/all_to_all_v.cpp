// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <vector>

#include "comm/shm/arguments.h"
#include "comm/shm/shared_memory_communicator.h"
#include "farandole/error.h"

namespace farandole::comm::shm {
namespace {

/// The sum of the counts.
size_t sum_of(const size_t* counts, size_t size) {
  size_t sum = 0;
  for (size_t i = 0; i < size; ++i) sum += counts[i];
  return sum;
}

}  // namespace

/// First every rank publishes its counts in its slot (one barrier). So all ranks check that the
/// blocks match, and know how many chunks the largest one needs. Then blocks are transferred chunk
/// by chunk, with one barrier per chunk.
void SharedMemoryCommunicator::all_to_all_v(const void* input, const size_t* send_counts,
                                            void* output, const size_t* receive_counts,
                                            DataType dtype, const CollectiveOptions& options) {
  const auto world = static_cast<size_t>(world_size());
  Call call = begin(OpKind::kAllToAllV, 0, dtype, options);
  const size_t size = call.element_bytes;
  const size_t sent = sum_of(send_counts, world);
  const size_t received = sum_of(receive_counts, world);
  for (size_t peer = 0; peer < world; ++peer) {
    check_count(OpKind::kAllToAllV, send_counts[peer], world, dtype);
    check_count(OpKind::kAllToAllV, receive_counts[peer], world, dtype);
  }
  check_count(OpKind::kAllToAllV, sent, 1, dtype);
  check_count(OpKind::kAllToAllV, received, 1, dtype);
  check_buffer(OpKind::kAllToAllV, "an input", input, sent * size);
  check_buffer(OpKind::kAllToAllV, "an output", output, received * size);
  check_overlap(OpKind::kAllToAllV, input, sent * size, output, received * size, nullptr);

  staging_.next_turn(2 * world * sizeof(size_t));
  auto* shown = reinterpret_cast<size_t*>(staging_.slot(rank()));
  std::copy_n(send_counts, world, shown);
  std::copy_n(receive_counts, world, shown + world);
  enter(call);
  size_t largest_block = 0;
  check_block_sizes(&largest_block);

  const auto own = static_cast<size_t>(rank());
  const auto* in = static_cast<const std::byte*>(input);
  auto* out = static_cast<std::byte*>(output);
  const size_t parts = std::max<size_t>(1, world - 1);  // a slot holds no block for its own rank
  const size_t part = staging_.slot_bytes() / parts / size;
  for (size_t offset = 0; offset < largest_block; offset += part) {
    const size_t length = std::min(part, largest_block - offset);
    const auto in_slot = [&](size_t from, size_t to) {
      return staging_.slot(static_cast<int>(from)) + (to < from ? to : to - 1) * length * size;
    };
    const auto copy_piece = [&](std::byte* to, const std::byte* from, size_t count) {
      if (offset < count) std::memcpy(to, from, std::min(length, count - offset) * size);
    };
    staging_.next_turn(parts * length * size);
    const std::byte* block = in;
    for (size_t peer = 0; peer < world; block += send_counts[peer++] * size) {
      if (peer == own) continue;
      copy_piece(in_slot(own, peer), block + offset * size, send_counts[peer]);
    }
    step(call);
    std::byte* place = out;
    for (size_t peer = 0; peer < world; place += receive_counts[peer++] * size) {
      if (peer == own) continue;
      copy_piece(place + offset * size, in_slot(peer, own), receive_counts[peer]);
    }
  }
  if (send_counts[own] != 0) {
    std::memcpy(out + sum_of(receive_counts, own) * size, in + sum_of(send_counts, own) * size,
                send_counts[own] * size);
  }
  finish(call, sent * size);
}

/// Every rank checks every pair, so that all ranks throw or none does. `largest_block`: the largest
/// block for another rank.
void SharedMemoryCommunicator::check_block_sizes(size_t* largest_block) const {
  const auto world = static_cast<size_t>(world_size());
  for (size_t from = 0; from < world; ++from) {
    const auto* sends = reinterpret_cast<const size_t*>(staging_.slot(static_cast<int>(from)));
    for (size_t to = 0; to < world; ++to) {
      const auto* receives =
          reinterpret_cast<const size_t*>(staging_.slot(static_cast<int>(to))) + world;
      if (from != to) *largest_block = std::max(*largest_block, sends[to]);
      if (sends[to] == receives[from]) continue;
      throw MismatchError(
          "unequal-splits",
          "all_to_all_v of group '" + name() + "': " + topology().name_of(static_cast<int>(from)) +
              " sends " + std::to_string(sends[to]) + " elements to " +
              topology().name_of(static_cast<int>(to)) + ", which expects " +
              std::to_string(receives[from]) + ".",
          "the split sizes of the two ranks do not agree.",
          "exchange the split sizes first (all_to_all of one number per rank).",
          topology().fault_of(from == to ? std::vector<int>{static_cast<int>(from)}
                                         : std::vector<int>{static_cast<int>(std::min(from, to)),
                                                            static_cast<int>(std::max(from, to))},
                              "all_to_all"));
    }
  }
}

}  // namespace farandole::comm::shm
