// SPDX-License-Identifier: Apache-2.0
// Reductions over several hosts.
//
// A tensor is cut into as many stripes as each host has ranks at least. Rank l of each host reduces
// stripe l over its host, and talks to the ranks l of the other hosts. On two hosts they exchange
// whole stripes: S bytes leave a host for a tensor of S bytes, in one round. On H > 2 hosts stripes
// are cut again into a part for each host, which combines it and sends the result to the others:
// 2 (H - 1) / H * S bytes leave a host, in two rounds (Rabenseifner's algorithm over hosts; direct,
// so that sums are formed in the order of hosts). Small tensors take the one round on any number of
// hosts.
#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/arguments.h"
#include "comm/hosts/host_reduction.h"
#include "comm/hosts/multi_host_communicator.h"
#include "comm/hosts/parts.h"

namespace farandole::comm::hosts {
namespace {

/// Bytes of a stripe up to which a second round costs more than it saves.
constexpr size_t kOneRoundBytes = size_t{32} << 10;

}  // namespace

/// One reduction of stripes on this rank.
struct MultiHostCommunicator::Stripes {
  MultiHostCommunicator& group;
  Call& call;
  const std::byte* input;
  std::byte* output;  ///< null: this rank does not want the result
  HostReduction reduction;
  int to_host;  ///< whose ranks want the result; -1: all
  size_t element = call.element_bytes;
  size_t stripes = index_of(group.map_.stripes());
  size_t hosts = index_of(group.map_.count());
  /// A rank alone on its host needs no area: it reads its input and writes its output.
  bool direct = group.is_alone();

  bool has_stripe() const { return index_of(group.local_) < stripes; }
  bool wants_partials() const { return to_host < 0 || to_host == group.host_; }
  Range own_stripe(const Chunk& chunk) const {
    return has_stripe() ? part_of(chunk.size, stripes, index_of(group.local_)) : Range{0, 0};
  }
  Range part_of_host(const Range& stripe, int host) const {
    return part_of(stripe.size, hosts, index_of(host));
  }
  bool in_parts(const Range& stripe) const {
    return to_host < 0 && hosts > 2 && stripe.size * element > kOneRoundBytes;
  }
  int peer_on(int host) const { return group.map_.rank_of(host, group.local_); }
  /// Where the own stripe of the result goes.
  std::byte* result(const Chunk& chunk, const Range& stripe) const {
    if (direct && output != nullptr) return output + chunk.begin * element;
    return group.arrived(group.local_, chunk) + stripe.begin * element;
  }
  /// What this host has of the own stripe.
  std::byte* partial(const Chunk& chunk) const {
    if (direct && reduction.leaves_single_source()) {
      return const_cast<std::byte*>(input) + chunk.begin * element;  // only read
    }
    return group.partial_of(chunk).data();
  }
  std::byte* inbox(const Chunk& chunk, int host, size_t bytes) const {
    return group.inbox_of(chunk).data() + index_of(host) * bytes;
  }

  void fill(const Chunk& chunk) const {
    if (direct || chunk.size == 0) return;
    std::memcpy(group.filled(group.local_, chunk), input + chunk.begin * element,
                chunk.size * element);
  }

  void reduce_on_host(const Chunk& chunk, const Range& stripe) const {
    if (direct && reduction.leaves_single_source()) return;
    group.partial_of(chunk).resize(stripe.size * element);
    if (stripe.size == 0) return;
    std::vector<const void*> sources;
    for (int local = 0; local < group.map_.size_of(group.host_); ++local) {
      const std::byte* source = direct ? input + chunk.begin * element : group.filled(local, chunk);
      sources.push_back(source + stripe.begin * element);
    }
    reduction.reduce_on_host(sources, partial(chunk), stripe.size);
  }

  /// Everyone gets the partial results of all hosts, or of its part of them.
  void launch(Chunk& chunk) const {
    const Range stripe = own_stripe(chunk);
    reduce_on_host(chunk, stripe);
    const bool parts = in_parts(stripe);
    const Range own = parts ? part_of_host(stripe, group.host_) : Range{0, stripe.size};
    group.inbox_of(chunk).resize(own.size * element * hosts);
    Moves sends;
    Moves receives;
    for (int host = 0; has_stripe() && host < group.map_.count(); ++host) {
      if (host == group.host_) continue;
      const Range part = parts ? part_of_host(stripe, host) : Range{0, stripe.size};
      if (to_host < 0 || to_host == host) {
        sends.push_back(
            {peer_on(host), partial(chunk) + part.begin * element, part.size * element});
      }
      if (wants_partials()) {
        receives.push_back(
            {peer_on(host), inbox(chunk, host, own.size * element), own.size * element});
      }
    }
    group.queue(call, chunk, sends, receives);
  }

  void combine(const Chunk& chunk, const Range& own, std::byte* target) const {
    if (own.size == 0 || !wants_partials()) return;
    std::vector<const void*> partials;
    for (int host = 0; host < group.map_.count(); ++host) {
      const std::byte* received = inbox(chunk, host, own.size * element);
      partials.push_back(host == group.host_ ? partial(chunk) + own.begin * element : received);
    }
    reduction.combine(partials, target, own.size);
  }

  /// Combines what has come; in two rounds it queues the second one.
  void combine(Chunk& chunk) const {
    group.await(call, chunk);
    chunk.marks.clear();
    const Range stripe = own_stripe(chunk);
    std::byte* const whole = result(chunk, stripe);
    if (in_parts(stripe)) {
      const Range own = part_of_host(stripe, group.host_);
      combine(chunk, own, whole + own.begin * element);
      spread(chunk, stripe, whole);
    } else {
      combine(chunk, {0, stripe.size}, whole);
    }
  }

  void finish(Chunk& chunk) const {
    group.await(call, chunk);
    if (direct) return;
    group.step(call);
    if (output == nullptr) return;
    for (size_t index = 0; index < stripes; ++index) {
      const Range part = part_of(chunk.size, stripes, index);
      if (part.size == 0) continue;
      std::memcpy(output + (chunk.begin + part.begin) * element,
                  group.arrived(static_cast<int>(index), chunk) + part.begin * element,
                  part.size * element);
    }
  }

  /// Each host sends its combined part to the others.
  void spread(Chunk& chunk, const Range& stripe, std::byte* whole) const {
    const Range own = part_of_host(stripe, group.host_);
    Moves sends;
    Moves receives;
    for (int host = 0; host < group.map_.count(); ++host) {
      if (host == group.host_) continue;
      const Range part = part_of_host(stripe, host);
      sends.push_back({peer_on(host), whole + own.begin * element, own.size * element});
      receives.push_back({peer_on(host), whole + part.begin * element, part.size * element});
    }
    group.queue(call, chunk, sends, receives);
  }
};

void MultiHostCommunicator::reduce_stripes(Call& call, const std::byte* input, std::byte* output,
                                           ReduceOp op, int to_host) {
  const Stripes stripes{
      *this,  call, input, output, HostReduction(call.signature.dtype, op, map_, world_size()),
      to_host};
  const Phases phases{[&](const Chunk& chunk) { stripes.fill(chunk); },
                      [&](Chunk& chunk) { stripes.launch(chunk); },
                      [&](Chunk& chunk) { stripes.finish(chunk); },
                      [&](Chunk& chunk) { stripes.combine(chunk); }};
  run(call, [&] { pass(call, call.signature.count, area_bytes_ / call.element_bytes, phases); });
  record_event(call, call.signature.count * call.element_bytes);
}

void MultiHostCommunicator::all_reduce(const void* input, void* output, size_t count,
                                       DataType dtype, ReduceOp op,
                                       const CollectiveOptions& options) {
  Call call = begin(OpKind::kAllReduce, count, dtype, options);
  call.signature.reduce_op = op;
  check_all_reduce(input, output, count, dtype, op);
  reduce_stripes(call, static_cast<const std::byte*>(input), static_cast<std::byte*>(output), op,
                 /*to_host=*/-1);
}

void MultiHostCommunicator::reduce(const void* input, void* output, size_t count, DataType dtype,
                                   ReduceOp op, int root, const CollectiveOptions& options) {
  Call call = begin(OpKind::kReduce, count, dtype, options);
  call.signature.reduce_op = op;
  call.signature.root = root;
  check_reduce(topology(), input, output, count, dtype, op, root);
  reduce_stripes(call, static_cast<const std::byte*>(input),
                 rank() == root ? static_cast<std::byte*>(output) : nullptr, op,
                 map_.host_of(root));
}

/// The block for a rank of another host is reduced over this host by the rank that sends to it.
void MultiHostCommunicator::reduce_scatter(const void* input, void* output, size_t count,
                                           DataType dtype, ReduceOp op,
                                           const CollectiveOptions& options) {
  Call call = begin(OpKind::kReduceScatter, count, dtype, options);
  call.signature.reduce_op = op;
  check_reduce_scatter(topology(), input, output, count, dtype, op);
  const HostReduction reduction(dtype, op, map_, world_size());
  const auto* in = static_cast<const std::byte*>(input);
  auto* out = static_cast<std::byte*>(output);
  const size_t element = call.element_bytes;
  const size_t world = index_of(world_size());
  std::vector<int> targets;  // of this rank's blocks, itself last
  for (const int peer : link_->peers()) {
    if (map_.sends(rank(), peer)) targets.push_back(peer);
  }
  targets.push_back(rank());
  const auto fill = [&](const Chunk& chunk) {
    for (size_t block = 0; block < world && chunk.size > 0; ++block) {
      std::memcpy(filled(local_, chunk) + block * chunk.size * element,
                  in + (block * count + chunk.begin) * element, chunk.size * element);
    }
  };
  const auto launch = [&](Chunk& chunk) {
    const size_t bytes = chunk.size * element;
    partial_of(chunk).resize(targets.size() * bytes);
    inbox_of(chunk).resize(index_of(map_.count()) * bytes);
    Moves sends;
    Moves receives;
    for (size_t i = 0; i < targets.size(); ++i) {
      std::byte* const partial = partial_of(chunk).data() + i * bytes;
      std::vector<const void*> sources;
      sources.reserve(index_of(map_.size_of(host_)));
      for (int local = 0; local < map_.size_of(host_); ++local) {
        sources.push_back(filled(local, chunk) + index_of(targets[i]) * bytes);
      }
      if (bytes > 0) reduction.reduce_on_host(sources, partial, chunk.size);
      if (targets[i] != rank()) sends.push_back({targets[i], partial, bytes});
    }
    for (int host = 0; host < map_.count(); ++host) {
      if (host == host_) continue;
      receives.push_back(
          {map_.sender_to(rank(), host), inbox_of(chunk).data() + index_of(host) * bytes, bytes});
    }
    queue(call, chunk, sends, receives);
  };
  const auto finish = [&](Chunk& chunk) {
    await(call, chunk);
    if (chunk.size == 0) return;
    const size_t bytes = chunk.size * element;
    std::vector<const void*> partials;
    for (int host = 0; host < map_.count(); ++host) {
      const std::byte* own = partial_of(chunk).data() + (targets.size() - 1) * bytes;
      const std::byte* received = inbox_of(chunk).data() + index_of(host) * bytes;
      partials.push_back(host == host_ ? own : received);
    }
    reduction.combine(partials, out + chunk.begin * element, chunk.size);
  };
  run(call, [&] { pass(call, count, area_bytes_ / element / world, {fill, launch, finish}); });
  record_event(call, count * element);
}

}  // namespace farandole::comm::hosts
