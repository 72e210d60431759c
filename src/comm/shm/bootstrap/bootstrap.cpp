// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/bootstrap/bootstrap.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "comm/shm/system/reason.h"
#include "farandole/comm/interrupt.h"
#include "farandole/error.h"

namespace farandole::comm::shm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// How long one try for a peer's part takes before this rank looks for failures. Each look asks the
/// store, which may be one process for all ranks.
constexpr milliseconds kTry{100};
/// The longest pause between two looks for a word of rank 0.
constexpr milliseconds kMostPause{20};
/// How long after its sockets a dying process may be seen to have ended.
constexpr milliseconds kDying{1000};
/// Under which key a rank says why it gives up.
constexpr const char* kFailure = "failure";

}  // namespace

Bootstrap::Bootstrap(Store& store, std::string group, const Topology& topology,
                     const Liveness& liveness, milliseconds timeout)
    : store_(store),
      group_(std::move(group)),
      topology_(topology),
      liveness_(liveness),
      timeout_(timeout),
      deadline_(Clock::now() + timeout) {}

std::string Bootstrap::key(const std::string& name) const {
  return "farandole/" + group_ + "/" + topology_.session + "/" + name;
}

void Bootstrap::set(const std::string& name, const std::string& value) {
  try {
    store_.set(key(name), value);
  } catch (const SystemError&) {
    explain_lost_store();
    throw;
  }
}

std::optional<std::string> Bootstrap::look(const std::string& name) {
  try {
    return store_.try_get(key(name));
  } catch (const SystemError&) {
    explain_lost_store();
    throw;
  }
}

/// Throws if the store is gone because rank 0, which may serve it, has died.
void Bootstrap::explain_lost_store() const {
  if (topology_.rank == 0) return;
  const auto deadline = Clock::now() + kDying;
  while (!liveness_.is_dead(0)) {
    if (Clock::now() >= deadline) return;
    std::this_thread::sleep_for(milliseconds(10));
  }
  fail_dead(0);
}

std::string Bootstrap::get(const std::string& name, int from) {
  std::optional<std::string> value;
  milliseconds pause{1};
  await({from}, [&](milliseconds limit) {
    const auto end = Clock::now() + limit;
    while (!(value = look(name)) && Clock::now() < end) {
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kMostPause);
    }
    return value.has_value();
  });
  return *value;
}

void Bootstrap::await(const std::vector<int>& peers, const Ready& ready) {
  while (!ready(kTry)) {
    if (look_for_failures(peers, ready)) return;
    check_forming_not_interrupted(group_);
    if (Clock::now() < deadline_) continue;
    std::string names;
    for (const int peer : peers) names += (names.empty() ? "" : ", ") + topology_.describe(peer);
    throw TimeoutError("rank-stopped",
                       "group '" + group_ + "' did not form within its timeout of " +
                           std::to_string(timeout_.count()) + " ms: " + names +
                           " did not get this far.",
                       "no message arrived.",
                       "look at that rank's own output; it started, but stopped before this point.",
                       topology_.fault_of(peers));
  }
}

void Bootstrap::check() {
  look_for_failures({}, [](milliseconds) { return false; });
}

/// The first rank that this one waits for and that has ended; -1 if there is none.
int Bootstrap::find_dead(const std::vector<int>& peers) const {
  for (int peer = 0; peer < topology_.world_size; ++peer) {
    const bool waits = topology_.rank == 0 || peer == 0 ||
                       std::find(peers.begin(), peers.end(), peer) != peers.end();
    if (waits && peer != topology_.rank && liveness_.is_dead(peer)) return peer;
  }
  return -1;
}

/// A rank that failed tells why before it ends, so its word is read after the look at its process.
/// True if a rank ended after it had done its part.
bool Bootstrap::look_for_failures(const std::vector<int>& peers, const Ready& ready) {
  const int dead = find_dead(peers);
  if (const auto told = look(kFailure)) {
    was_told_ = true;
    const size_t line = told->find('\n');
    const int failed = std::stoi(told->substr(0, line));
    throw AbortedError(
        "peer-gave-up",
        "group '" + group_ + "' did not form: " + topology_.describe(failed) + " gave up.",
        told->substr(line + 1), "fix the cause on that rank, then make the group again.",
        topology_.fault_of({failed}));
  }
  if (dead < 0) return false;
  if (ready(milliseconds(0))) return true;
  fail_dead(dead);
}

void Bootstrap::fail_dead(int rank) const {
  throw PeerFailure("peer-ended-while-forming",
                    "group '" + group_ + "' did not form: " + topology_.describe(rank) + " " +
                        liveness_.cause_of_death(rank) + ".",
                    "it ended before all ranks had joined.", "look at that rank's own output.",
                    topology_.fault_of({rank}));
}

void Bootstrap::tell(const std::exception& error) noexcept {
  if (was_told_ || topology_.world_size == 1) return;
  try {
    set(kFailure, std::to_string(topology_.rank) + "\n" + reason_of(error.what()));
  } catch (const std::exception&) {
    // Without a store the peers see this process end, or wait for their timeout.
  }
}

}  // namespace farandole::comm::shm
