// SPDX-License-Identifier: Apache-2.0
#include "process_group/live_groups.h"

#include <c10/util/ScopeExit.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "farandole/comm/communicator.h"
#include "farandole/error.h"

namespace farandole {
namespace {

/// Never destroyed: groups may be let go after main().
struct LiveGroups {
  const pid_t process = ::getpid();
  std::mutex mutex;
  std::condition_variable let_go;
  std::set<ProcessGroupFarandole*> groups;       // guarded by mutex
  std::multiset<ProcessGroupFarandole*> in_use;  // guarded by mutex; they stay until they are not
};

LiveGroups& live() {
  static auto* const instance = [] {
    std::atexit(shut_down_all_groups);
    return new LiveGroups;
  }();
  return *instance;
}

/// A child's copy of the mutex may have been held at the fork.
bool is_forked_child(const LiveGroups& known) { return known.process != ::getpid(); }

}  // namespace

void remember(ProcessGroupFarandole& group) {
  LiveGroups& known = live();
  if (is_forked_child(known)) return;
  const std::lock_guard<std::mutex> lock(known.mutex);
  known.groups.insert(&group);
}

void forget(ProcessGroupFarandole& group) {
  LiveGroups& known = live();
  if (is_forked_child(known)) return;
  std::unique_lock<std::mutex> lock(known.mutex);
  known.let_go.wait(lock, [&] { return known.in_use.count(&group) == 0; });
  known.groups.erase(&group);
}

ProcessGroupFarandole* owner_of(const c10d::Backend::Options* options) {
  LiveGroups& known = live();
  if (is_forked_child(known)) return nullptr;
  const std::lock_guard<std::mutex> lock(known.mutex);
  for (ProcessGroupFarandole* group : known.groups) {
    if (group->getBackendOptions().get() == options) return group;
  }
  return nullptr;
}

comm::WhileForming watch_of_default_group(const std::vector<uint64_t>& ranks) {
  LiveGroups& known = live();
  if (ranks.empty() || is_forked_child(known)) return {};
  std::weak_ptr<comm::Communicator> largest;  // all other groups are parts of the default group
  std::weak_ptr<comm::Communicator> whole;    // the default group, if it is ours
  {
    const std::lock_guard<std::mutex> lock(known.mutex);
    int size = 1;
    int wholes = 0;
    for (ProcessGroupFarandole* group : known.groups) {
      const auto communicator = group->communicator(c10::DeviceType::CPU);
      if (!communicator) continue;
      if (group->is_default() && wholes++ == 0) whole = communicator;
      if (group->getSize() <= size) continue;
      size = group->getSize();
      largest = communicator;
    }
    if (wholes != 1) whole.reset();  // which one the ranks are counted in is not known
  }
  return [ranks, largest, whole](const comm::IsAbsent& is_absent) {
    const auto place_of = [&](int rank) {
      return std::find(ranks.begin(), ranks.end(), static_cast<uint64_t>(rank)) - ranks.begin();
    };
    const auto is_among = [&](int rank) {
      return place_of(rank) < static_cast<std::ptrdiff_t>(ranks.size());
    };
    try {
      if (const auto communicator = largest.lock()) communicator->check_alive();
    } catch (const PeerFailure& error) {
      if (std::any_of(error.ranks().begin(), error.ranks().end(), is_among)) throw;
    } catch (const CommError&) {  // the default group is over for another reason
    }
    if (const auto communicator = whole.lock()) {
      communicator->check_joins(
          [&](int rank) { return is_among(rank) && is_absent(static_cast<int>(place_of(rank))); });
    }
  };
}

void shut_down_all_groups() {
  LiveGroups& known = live();
  if (is_forked_child(known)) return;
  std::unique_lock<std::mutex> lock(known.mutex);
  const std::vector<ProcessGroupFarandole*> present(known.groups.begin(), known.groups.end());
  for (ProcessGroupFarandole* const group : present) {
    if (known.groups.count(group) == 0) continue;
    const auto use = known.in_use.insert(group);
    lock.unlock();  // callbacks run meanwhile, and may ask for a group or let one go
    const auto end_use = c10::make_scope_exit([&] {
      lock.lock();
      known.in_use.erase(use);
      known.let_go.notify_all();
    });
    group->shutdown();
  }
}

}  // namespace farandole
