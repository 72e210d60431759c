// SPDX-License-Identifier: Apache-2.0
#include "process_group/live_groups.h"

#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <set>

namespace farandole {
namespace {

/// Never destroyed: groups may be let go after main().
struct LiveGroups {
  const pid_t process = ::getpid();
  std::mutex mutex;
  std::set<ProcessGroupFarandole*> groups;  // guarded by mutex
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
  const std::lock_guard<std::mutex> lock(known.mutex);
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

void shut_down_all_groups() {
  LiveGroups& known = live();
  if (is_forked_child(known)) return;
  const std::lock_guard<std::mutex> lock(known.mutex);
  for (ProcessGroupFarandole* group : known.groups) group->shutdown();
}

}  // namespace farandole
