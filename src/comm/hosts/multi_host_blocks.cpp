// SPDX-License-Identifier: Apache-2.0
// The collectives that pass blocks from rank to rank over several hosts. Blocks for a rank of
// another host are sent by the rank that sends to it (HostMap), out of the areas of its host.
#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/arguments.h"
#include "comm/hosts/multi_host_communicator.h"
#include "comm/hosts/parts.h"
#include "comm/split_sizes.h"

namespace farandole::comm::hosts {

/// Where the block of a rank of another host lies in the area of the rank of this host that
/// receives it, counted in blocks.
size_t MultiHostCommunicator::slot_of(int source) const {
  const int own_size = map_.size_of(host_);
  size_t slot = 0;
  for (int host = 0; host < map_.count(); ++host) {
    if (host == host_) continue;
    if (host == map_.host_of(source)) return slot + index_of(map_.local_of(source) / own_size);
    slot += index_of((map_.size_of(host) + own_size - 1) / own_size);
  }
  return slot;
}

/// As many slots as an area needs for what arrives.
size_t MultiHostCommunicator::slots() const {
  int most = 1;
  for (int of = 0; of < map_.count(); ++of) {
    int slots = 0;
    for (int host = 0; host < map_.count(); ++host) {
      if (host != of) slots += (map_.size_of(host) + map_.size_of(of) - 1) / map_.size_of(of);
    }
    most = std::max(most, slots);
  }
  return index_of(most);
}

/// Every rank's block goes to all ranks of all hosts, or of one. Block i of host A goes to rank (i
/// mod size) of each other host, out of whose area all ranks of that host copy it. `output` is null
/// where nobody wants it.
void MultiHostCommunicator::gather_blocks(Call& call, const std::byte* input, std::byte* output,
                                          size_t bytes, int to_host) {
  const size_t own_size = index_of(map_.size_of(host_));
  const size_t chunk_size = area_bytes_ / slots();
  const auto fill = [&](const Chunk& chunk) {
    if (chunk.size > 0) std::memcpy(filled(local_, chunk), input + chunk.begin, chunk.size);
  };
  const auto arrives_at = [&](int source, const Chunk& chunk) {
    const int holder = map_.local_of(source) % static_cast<int>(own_size);
    return arrived(holder, chunk) + slot_of(source) * chunk_size;
  };
  const auto launch = [&](Chunk& chunk) {
    Moves sends;
    Moves receives;
    for (const int peer : link_->peers()) {
      const int there = map_.host_of(peer);
      const size_t peer_size = index_of(map_.size_of(there));
      // This rank's host may have more ranks than `peer`'s: then `peer` holds several blocks, each
      // sent by another rank or by this one.
      if (map_.sends(rank(), peer) && (to_host < 0 || to_host == there)) {
        for (size_t i = index_of(map_.local_of(peer)); i < own_size; i += peer_size) {
          sends.push_back({peer, filled(static_cast<int>(i), chunk), chunk.size});
        }
      }
      if (map_.sends(peer, rank()) && (to_host < 0 || to_host == host_)) {
        for (size_t i = index_of(local_); i < peer_size; i += own_size) {
          const int source = map_.rank_of(there, static_cast<int>(i));
          receives.push_back({peer, arrives_at(source, chunk), chunk.size});
        }
      }
    }
    queue(call, chunk, sends, receives);
  };
  const auto finish = [&](Chunk& chunk) {
    await(call, chunk);
    step(call);
    for (int source = 0; output != nullptr && chunk.size > 0 && source < world_size(); ++source) {
      const std::byte* from = map_.host_of(source) == host_ ? filled(map_.local_of(source), chunk)
                                                            : arrives_at(source, chunk);
      std::memcpy(output + index_of(source) * bytes + chunk.begin, from, chunk.size);
    }
  };
  pass(call, bytes, chunk_size, {fill, launch, finish});
}

void MultiHostCommunicator::all_gather(const void* input, void* output, size_t count,
                                       DataType dtype, const CollectiveOptions& options) {
  Call call = begin(OpKind::kAllGather, count, dtype, options);
  check_all_gather(topology(), input, output, count, dtype);
  const size_t bytes = count * call.element_bytes;
  run(call, [&] {
    gather_blocks(call, static_cast<const std::byte*>(input), static_cast<std::byte*>(output),
                  bytes, /*to_host=*/-1);
  });
  record_event(call, bytes);
}

void MultiHostCommunicator::gather(const void* input, void* output, size_t count, DataType dtype,
                                   int root, const CollectiveOptions& options) {
  Call call = begin(OpKind::kGather, count, dtype, options);
  call.signature.root = root;
  check_gather(topology(), input, output, count, dtype, root);
  const size_t bytes = count * call.element_bytes;
  run(call, [&] {
    gather_blocks(call, static_cast<const std::byte*>(input),
                  rank() == root ? static_cast<std::byte*>(output) : nullptr, bytes,
                  map_.host_of(root));
  });
  record_event(call, bytes);
}

/// The root's tensor travels in stripes, one from each of the first ranks of its host.
void MultiHostCommunicator::broadcast(void* buffer, size_t count, DataType dtype, int root,
                                      const CollectiveOptions& options) {
  Call call = begin(OpKind::kBroadcast, count, dtype, options);
  call.signature.root = root;
  check_broadcast(topology(), buffer, count, dtype, root);
  auto* data = static_cast<std::byte*>(buffer);
  const size_t bytes = count * call.element_bytes;
  const bool here = map_.host_of(root) == host_;
  const size_t stripes = index_of(map_.stripes());
  const auto fill = [&](const Chunk& chunk) {
    if (rank() == root && chunk.size > 0) {
      std::memcpy(filled(local_, chunk), data + chunk.begin, chunk.size);
    }
  };
  const auto launch = [&](Chunk& chunk) {
    Moves sends;
    Moves receives;
    const size_t stripe = index_of(local_);
    for (int host = 0; stripe < stripes && host < map_.count(); ++host) {
      if (host == host_) continue;
      const int peer = map_.rank_of(host, local_);
      const Range part = part_of(chunk.size, stripes, stripe);
      if (here) sends.push_back({peer, filled(map_.local_of(root), chunk) + part.begin, part.size});
      if (host == map_.host_of(root)) {
        receives.push_back({peer, arrived(local_, chunk) + part.begin, part.size});
      }
    }
    queue(call, chunk, sends, receives);
  };
  const auto finish = [&](Chunk& chunk) {
    await(call, chunk);
    step(call);
    for (size_t stripe = 0; rank() != root && chunk.size > 0 && stripe < stripes; ++stripe) {
      const std::byte* from =
          here ? filled(map_.local_of(root), chunk) : arrived(static_cast<int>(stripe), chunk);
      const Range part = part_of(chunk.size, stripes, stripe);
      std::memcpy(data + chunk.begin + part.begin, from + part.begin, part.size);
    }
  };
  run(call, [&] { pass(call, bytes, area_bytes_, {fill, launch, finish}); });
  record_event(call, bytes);
}

void MultiHostCommunicator::scatter(const void* input, void* output, size_t count, DataType dtype,
                                    int root, const CollectiveOptions& options) {
  Call call = begin(OpKind::kScatter, count, dtype, options);
  call.signature.root = root;
  check_scatter(topology(), input, output, count, dtype, root);
  const auto* in = static_cast<const std::byte*>(input);
  auto* out = static_cast<std::byte*>(output);
  const size_t bytes = count * call.element_bytes;
  const size_t world = index_of(world_size());
  const bool here = map_.host_of(root) == host_;
  const auto block = [&](int of, const Chunk& chunk) {
    return filled(map_.local_of(root), chunk) + index_of(of) * chunk.size;
  };
  const auto fill = [&](const Chunk& chunk) {
    for (size_t i = 0; rank() == root && chunk.size > 0 && i < world; ++i) {
      std::memcpy(filled(local_, chunk) + i * chunk.size, in + i * bytes + chunk.begin, chunk.size);
    }
  };
  const auto launch = [&](Chunk& chunk) {
    Moves sends;
    Moves receives;
    for (const int peer : link_->peers()) {
      if (here && map_.sends(rank(), peer)) sends.push_back({peer, block(peer, chunk), chunk.size});
    }
    if (!here) {
      receives.push_back(
          {map_.sender_to(rank(), map_.host_of(root)), out + chunk.begin, chunk.size});
    }
    queue(call, chunk, sends, receives);
  };
  const auto finish = [&](Chunk& chunk) {
    await(call, chunk);
    if (here && chunk.size > 0) std::memcpy(out + chunk.begin, block(rank(), chunk), chunk.size);
  };
  run(call, [&] { pass(call, bytes, area_bytes_ / world, {fill, launch, finish}); });
  record_event(call, bytes);
}

/// What ranks send to each other lies in their areas block after block, one for each rank. A rank's
/// block for itself passes through no area: its size says nothing to the others.
struct MultiHostCommunicator::Exchange {
  MultiHostCommunicator& group;
  Call& call;
  const std::byte* input;
  std::byte* output;
  /// Bytes that `from` sends to `to`, all of them, and those before the block in from's input and
  /// in to's output.
  std::function<size_t(int from, int to)> bytes;
  std::function<size_t(int to)> place_in_input;
  std::function<size_t(int from)> place_in_output;

  /// Bytes of the block that travel with this chunk.
  size_t piece(int from, int to, const Chunk& chunk) const {
    const size_t all = bytes(from, to);
    return all <= chunk.begin ? 0 : std::min(chunk.size, all - chunk.begin);
  }
  std::byte* in_area(int local, int to, const Chunk& chunk) const {
    return group.filled(local, chunk) + index_of(to) * chunk.size;
  }
  std::byte* in_output(int from, const Chunk& chunk) const {
    return output + place_in_output(from) + chunk.begin;
  }

  void fill(const Chunk& chunk) const {
    for (int to = 0; to < group.world_size(); ++to) {
      const size_t size = piece(group.rank(), to, chunk);
      if (size == 0 || to == group.rank()) continue;
      std::memcpy(in_area(group.local_, to, chunk), input + place_in_input(to) + chunk.begin, size);
    }
  }

  void launch(Chunk& chunk) const {
    const HostMap& map = group.map_;
    Moves sends;
    Moves receives;
    for (const int peer : group.link_->peers()) {
      if (!map.sends(group.rank(), peer)) continue;
      for (int local = 0; local < map.size_of(group.host_); ++local) {
        const int from = map.rank_of(group.host_, local);
        sends.push_back({peer, in_area(local, peer, chunk), piece(from, peer, chunk)});
      }
    }
    for (int host = 0; host < map.count(); ++host) {
      if (host == group.host_) continue;
      const int sender = map.sender_to(group.rank(), host);
      for (const int from : map.ranks_of(host)) {
        receives.push_back({sender, in_output(from, chunk), piece(from, group.rank(), chunk)});
      }
    }
    group.queue(call, chunk, sends, receives);
  }

  void finish(Chunk& chunk) const {
    group.await(call, chunk);
    for (int local = 0; local < group.map_.size_of(group.host_); ++local) {
      const int from = group.map_.rank_of(group.host_, local);
      const size_t size = piece(from, group.rank(), chunk);
      if (size == 0 || from == group.rank()) continue;
      std::memcpy(in_output(from, chunk), in_area(local, group.rank(), chunk), size);
    }
  }

  /// `largest_block`: of those for other ranks, the same on all ranks.
  void run(size_t largest_block) const {
    const Phases phases{[&](const Chunk& chunk) { fill(chunk); },
                        [&](Chunk& chunk) { launch(chunk); }, [&](Chunk& chunk) { finish(chunk); }};
    group.pass(call, largest_block, group.area_bytes_ / index_of(group.world_size()), phases);
    const int own = group.rank();
    const size_t size = bytes(own, own);
    if (size > 0) std::memcpy(output + place_in_output(own), input + place_in_input(own), size);
  }
};

void MultiHostCommunicator::all_to_all(const void* input, void* output, size_t count,
                                       DataType dtype, const CollectiveOptions& options) {
  Call call = begin(OpKind::kAllToAll, count, dtype, options);
  check_all_to_all(topology(), input, output, count, dtype);
  const size_t bytes = count * call.element_bytes;
  const auto place = [&](int block) { return index_of(block) * bytes; };
  const Exchange exchange{*this,
                          call,
                          static_cast<const std::byte*>(input),
                          static_cast<std::byte*>(output),
                          [&](int, int) { return bytes; },
                          place,
                          place};
  run(call, [&] { exchange.run(bytes); });
  record_event(call, bytes);
}

/// First every rank tells all others its counts, so that all check them and know how much they
/// receive.
void MultiHostCommunicator::all_to_all_v(const void* input, const size_t* send_counts, void* output,
                                         const size_t* receive_counts, DataType dtype,
                                         const CollectiveOptions& options) {
  Call call = begin(OpKind::kAllToAllV, 0, dtype, options);
  check_all_to_all_v(topology(), input, send_counts, output, receive_counts, dtype);
  const size_t world = index_of(world_size());
  const size_t element = call.element_bytes;
  std::vector<size_t> own(send_counts, send_counts + world);
  own.insert(own.end(), receive_counts, receive_counts + world);
  std::vector<size_t> all(own.size() * world);
  run(call, [&] {
    gather_blocks(call, reinterpret_cast<const std::byte*>(own.data()),
                  reinterpret_cast<std::byte*>(all.data()), own.size() * sizeof(size_t),
                  /*to_host=*/-1);
    std::vector<const size_t*> rows;
    rows.reserve(world);
    for (size_t peer = 0; peer < world; ++peer) rows.push_back(all.data() + peer * own.size());
    const size_t largest = check_split_sizes(name(), topology(), rows);
    const Exchange exchange{
        *this,
        call,
        static_cast<const std::byte*>(input),
        static_cast<std::byte*>(output),
        [&](int from, int to) { return rows[index_of(from)][index_of(to)] * element; },
        [&](int to) { return sum_of(send_counts, index_of(to)) * element; },
        [&](int from) { return sum_of(receive_counts, index_of(from)) * element; }};
    exchange.run(largest * element);
  });
  record_event(call, sum_of(send_counts, world) * element);
}

}  // namespace farandole::comm::hosts
