// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/shared_signals.h"

#include <algorithm>
#include <utility>

#include "comm/arguments.h"
#include "comm/shm/system/pause.h"
#include "farandole/error.h"

namespace farandole::comm::shm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

/// Checks of the counter between two checks of the clock.
constexpr int kLooksPerClock = 64;

}  // namespace

size_t SharedSignals::part_bytes(int world_size) {
  return sizeof(Bell) + static_cast<size_t>(world_size) * sizeof(Counter);
}

SharedSignals::SharedSignals(std::shared_ptr<SymmetricMemory> memory, const Topology& topology,
                             Lockstep& lockstep, Options options)
    : memory_(std::move(memory)),
      topology_(topology),
      lockstep_(lockstep),
      options_(std::move(options)),
      taken_(static_cast<size_t>(topology.world_size)) {}

Bell& SharedSignals::bell(int rank) const { return *static_cast<Bell*>(memory_->peer(rank)); }

SharedSignals::Counter& SharedSignals::counter(int rank, int source) const {
  auto* part = static_cast<std::byte*>(memory_->peer(rank));
  return reinterpret_cast<Counter*>(part + sizeof(Bell))[source];
}

void SharedSignals::signal(int peer) {
  check_peer("signal", "peer", peer, 0, topology_.world_size);
  lockstep_.check_in_creator();
  lockstep_.check_peers();
  counter(peer, topology_.rank).sent.fetch_add(1, std::memory_order_seq_cst);
  bell(peer).ring();
}

void SharedSignals::wait(int peer, const CollectiveOptions& options) {
  check_peer("wait", "peer", peer, 0, topology_.world_size);
  lockstep_.check_in_creator();
  if (take(peer) || (!options.sleep_at_once && spin(peer))) return;
  const milliseconds wait_policy =
      std::min(options.timeout.count() > 0 ? options.timeout : options_.timeout(), kMostTimeout);
  const auto deadline = Clock::now() + wait_policy;
  auto next_look = Clock::now();  // at once, because the group may be over already
  while (!take(peer)) {
    const auto now = Clock::now();
    if (now >= next_look) {
      look_for_failure(peer);
      next_look = now + kLivenessInterval;
    }
    if (now >= deadline) fail_late(peer, wait_policy);
    const auto left = std::chrono::duration_cast<microseconds>(deadline - now);
    if (sleep(peer, std::min<microseconds>(kLivenessInterval, left))) return;
  }
}

/// Takes a signal of `peer` if there is one. Each signal is taken by one thread.
bool SharedSignals::take(int peer) {
  const uint64_t sent = counter(topology_.rank, peer).sent.load(std::memory_order_seq_cst);
  auto& taken = taken_[static_cast<size_t>(peer)];
  uint64_t before = taken.load(std::memory_order_relaxed);
  while (before < sent) {
    if (taken.compare_exchange_weak(before, before + 1, std::memory_order_relaxed)) return true;
  }
  return false;
}

bool SharedSignals::spin(int peer) {
  const auto end = Clock::now() + options_.spin;
  while (Clock::now() < end) {
    for (int i = 0; i < kLooksPerClock; ++i) {
      pause_core();
      if (take(peer)) return true;
    }
  }
  return false;
}

/// Sleeps until a signal arrives or `limit` has passed; true if it took a signal instead of
/// sleeping.
bool SharedSignals::sleep(int peer, microseconds limit) {
  bool taken = false;
  bell(topology_.rank).sleep([&] {
    taken = take(peer);
    return taken ? microseconds(0) : limit;
  });
  return taken;
}

void SharedSignals::look_for_failure(int peer) {
  lockstep_.check_peers();
  if (peer == topology_.rank || !lockstep_.is_gone(peer)) return;
  const Counter& from = counter(topology_.rank, peer);
  if (from.sent.load(std::memory_order_seq_cst) >
      taken_[static_cast<size_t>(peer)].load(std::memory_order_relaxed)) {
    return;
  }
  const std::string what = topology_.name_of(topology_.rank) + " of group '" + options_.group +
                           "' waited for a signal of " + topology_.describe(peer) +
                           ", which has ended.";
  lockstep_.abort(topology_.name_of(topology_.rank) + " gave up: " + what, peer);
  throw PeerFailure(
      "signal-peer-ended", what, "that rank ended or left the group before it sent the signal.",
      "look at that rank's own output, then restart the job or continue without that rank.",
      topology_.fault_of({peer}, "wait_signal"));
}

void SharedSignals::fail_late(int peer, milliseconds timeout) {
  const std::string what = topology_.name_of(topology_.rank) + " of group '" + options_.group +
                           "' reached its timeout of " + std::to_string(timeout.count()) +
                           " ms: " + topology_.describe(peer) + " sent no signal.";
  lockstep_.abort(topology_.name_of(topology_.rank) + " gave up: " + what);
  throw TimeoutError("signal-timeout", what,
                     "that rank has sent fewer signals than this rank has waited for.",
                     "call signal() once on that rank for each wait, or increase the timeout.",
                     topology_.fault_of({peer}, "wait_signal"));
}

}  // namespace farandole::comm::shm
