// SPDX-License-Identifier: Apache-2.0
#include "farandole/process_group/init.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "farandole/error.h"
#include "farandole/process_group/process_group.h"
#include "process_group/default_group_finder.h"
#include "process_group/device/accelerators.h"
#include "process_group/rendezvous.h"
#include "process_group/torch_compat.h"

namespace farandole {
namespace {

/// torch.distributed gives its default group this name; so the two find each other's.
constexpr const char* kDefaultName = "0";
/// For so long after a store is lost, ranks look for rank 0's next one.
constexpr std::chrono::seconds kReturn{10};

/// The groups that C++ made. Never destroyed: destructors at exit would find other statics gone.
struct Groups {
  std::mutex mutex;
  Group world;                // guarded by mutex
  std::vector<Group> others;  // guarded by mutex
  int made = 0;               // guarded by mutex; new_group() calls, the same on every rank
  bool is_ending = false;     // guarded by mutex; destroy() ends the world
  DefaultGroupFinder finder = nullptr;
};

Groups& groups() {
  static auto* const instance = new Groups;
  return *instance;
}

c10::intrusive_ptr<c10d::Store> below(const char* prefix,
                                      const c10::intrusive_ptr<c10d::Store>& store) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
}

/// A c10d group of our backend for CPU and accelerators, put together as torch.distributed does.
Group wrap(const c10::intrusive_ptr<c10d::Backend>& backend,
           const c10::intrusive_ptr<c10d::Store>& store, const std::string& name,
           const std::string& message_name) {
  auto group =
      c10::make_intrusive<c10d::ProcessGroup>(store, backend->getRank(), backend->getSize());
  constexpr auto kCustom = c10d::ProcessGroup::BackendType::CUSTOM;
  group->setDefaultBackend(kCustom);
  group->setBackend(c10::DeviceType::CPU, kCustom, backend);
  for (const c10::DeviceType type : kAccelerators) {
    if (c10::impl::hasDeviceGuardImpl(type)) group->setBackend(type, kCustom, backend);
  }
  group->setGroupName(name);
  group->setGroupDesc(message_name);
  c10d::register_process_group(name, group);
  return group;
}

/// `ranks`: in the default group; empty: it is the default group.
Group make_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                 const std::string& name, const std::string& message_name,
                 std::chrono::milliseconds timeout, const std::vector<int>& ranks) {
  const auto group_store = below((name + "/").c_str(), store);
  auto options = c10::make_intrusive<ProcessGroupFarandole::Options>(timeout);
  options->group_name = message_name;
  options->is_default = ranks.empty();
  options->global_ranks_in_group.assign(ranks.begin(), ranks.end());
  return wrap(c10::make_intrusive<ProcessGroupFarandole>(below("cpu/", group_store), rank,
                                                         world_size, options),
              group_store, name, message_name);
}

bool is_default(const InitOptions& options) {
  return options.rank < 0 && options.world_size < 0 && !options.store &&
         options.init_method.empty();
}

Group find_default_group() {
  Groups& known = groups();
  {
    const std::lock_guard<std::mutex> lock(known.mutex);
    if (known.world) return known.world;
  }
  return known.finder != nullptr ? known.finder() : registered_group(kDefaultName);
}

/// Where the launcher's variables name a port of rank 0, a rank that comes back for another group
/// before rank 0 does finds the store of the group before, which rank 0 is about to close. It then
/// meets the others again.
Group form_world(const InitOptions& options) {
  InitOptions meeting = options;
  std::optional<std::chrono::steady_clock::time_point> deadline;
  while (true) {
    const Rendezvous place = meet(meeting);
    try {
      return make_group(below("default_pg", place.store), place.rank, place.world_size,
                        kDefaultName, "default", options.timeout, {});
    } catch (const SystemError&) {
      const auto now = std::chrono::steady_clock::now();
      if (!deadline) deadline = now + kReturn;
      if (place.rank == 0 || !is_default(options) || now >= *deadline) throw;
      meeting.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(*deadline - now) +
                        std::chrono::milliseconds(1);
    }
  }
}

void end(const Group& group) {
  group->shutdown();
  c10d::unregister_process_group(group->getGroupName());
}

}  // namespace

void set_default_group_finder(DefaultGroupFinder finder) { groups().finder = finder; }

Group init_process_group(const InitOptions& options) {
  if (const Group existing = find_default_group()) {
    if (is_default(options)) return existing;
    throw InvalidArgument(
        "initialized-twice", "init_process_group() was called twice in this process.",
        "a default group exists, and the arguments ask for a different one.",
        "call destroy() first, or call it without arguments to get the existing group.");
  }
  const Group world = form_world(options);
  Groups& known = groups();
  const std::lock_guard<std::mutex> lock(known.mutex);
  known.world = world;
  return world;
}

Group default_group() {
  if (Group group = find_default_group()) return group;
  throw InvalidArgument(
      "no-default-group", "there is no default group.",
      "init_process_group() has not been called in this process, or destroy() was.",
      "call init_process_group() first.");
}

bool is_initialized() { return static_cast<bool>(find_default_group()); }

Group new_group(const std::vector<int>& ranks, std::chrono::milliseconds timeout) {
  const Group world = default_group();
  Groups& known = groups();
  int number = 0;
  {
    const std::lock_guard<std::mutex> lock(known.mutex);
    number = ++known.made;
  }
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  const bool twice = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
  if (sorted.empty() || twice || sorted.front() < 0 || sorted.back() >= world->getSize()) {
    throw InvalidArgument(
        "new-group-ranks",
        "new_group() got ranks that cannot form a group of the default group's " +
            std::to_string(world->getSize()) + ".",
        "there must be at least one rank, no rank twice, and all must be in the default group.",
        "pass each rank of the default group at most once.");
  }
  const auto own = std::find(ranks.begin(), ranks.end(), world->getRank());
  if (own == ranks.end()) return {};
  const std::string name = "farandole_" + std::to_string(number);
  const Group group = make_group(world->getStore(), static_cast<int>(own - ranks.begin()),
                                 static_cast<int>(ranks.size()), name, name, timeout, ranks);
  const std::lock_guard<std::mutex> lock(known.mutex);
  known.others.push_back(group);
  return group;
}

Group shrink_group(const std::vector<int64_t>& excluded, const Group& group) {
  const Group old = group ? group : default_group();
  Groups& known = groups();
  bool is_world = false;
  bool is_ours = false;
  int number = 0;
  {
    const std::lock_guard<std::mutex> lock(known.mutex);
    is_world = old == known.world;
    is_ours = is_world || std::count(known.others.begin(), known.others.end(), old) != 0;
    number = ++known.made;
  }
  const auto backend = ProcessGroupFarandole::of(*old);
  if (!is_ours || !backend) {
    throw InvalidArgument("shrink-foreign-group", "shrink_group() cannot replace this group.",
                          "torch.distributed or another backend made it.",
                          "call torch.distributed.shrink_group() in Python.");
  }
  const auto shrunk = backend->shrink(excluded);
  const std::string message_name = backend->name() + "/shrunk";
  const std::string name = is_world ? kDefaultName : "farandole_" + std::to_string(number);
  const auto store = below(("shrunk_" + std::to_string(number) + "/").c_str(), old->getStore());
  destroy(is_world ? Group() : old);
  const Group result = wrap(shrunk, store, name, message_name);
  const std::lock_guard<std::mutex> lock(known.mutex);
  if (is_world) {
    known.world = result;
  } else {
    known.others.push_back(result);
  }
  return result;
}

void abort(const Group& group) { (group ? group : default_group())->abort(); }

void destroy(const Group& group) {
  const Group present = find_default_group();
  Groups& known = groups();
  std::vector<Group> ended;
  std::unique_lock<std::mutex> lock(known.mutex);
  if (group && group != known.world) {
    known.others.erase(std::remove(known.others.begin(), known.others.end(), group),
                       known.others.end());
    lock.unlock();
    return end(group);
  }
  if (!known.world) {
    if (!present) return;
    throw InvalidArgument("destroy-default-group",
                          "destroy() cannot end the default group of this process.",
                          "torch.distributed made it and keeps its own record of it.",
                          "call torch.distributed.destroy_process_group() in Python.");
  }
  if (std::exchange(known.is_ending, true)) return;
  ended.assign(known.others.rbegin(), known.others.rend());
  ended.push_back(known.world);
  known.others.clear();
  lock.unlock();  // callbacks of futures run meanwhile, and may ask for their rank
  const auto end_lock = c10::make_scope_exit([&] {
    if (!lock) lock.lock();
    known.is_ending = false;
    lock.unlock();
  });
  for (const Group& each : ended) end(each);
  lock.lock();
  known.world.reset();
  known.made = 0;
}

}  // namespace farandole
