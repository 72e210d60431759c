// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <vector>

#include "comm/arguments.h"
#include "comm/shm/shared_memory_communicator.h"
#include "comm/split_sizes.h"

namespace farandole::comm::shm {

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
  check_all_to_all_v(topology(), input, send_counts, output, receive_counts, dtype);

  staging_.next_turn(2 * world * sizeof(size_t));
  auto* shown = reinterpret_cast<size_t*>(staging_.slot(rank()));
  std::copy_n(send_counts, world, shown);
  std::copy_n(receive_counts, world, shown + world);
  enter(call);
  std::vector<const size_t*> rows;
  rows.reserve(world);
  for (int peer = 0; peer < world_size(); ++peer) {
    rows.push_back(reinterpret_cast<const size_t*>(staging_.slot(peer)));
  }
  const size_t largest_block = check_split_sizes(name(), topology(), rows);

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

}  // namespace farandole::comm::shm
