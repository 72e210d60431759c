// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_nccl/memory.h"

#include <array>
#include <iterator>

#include "support/simulated_device/device.h"
#include "support/simulated_device/memory.h"
#include "support/simulated_nccl/misuse.h"

namespace farandole::sim::nccl {
namespace {

/// A stream on which nothing runs: all streams may use the memory at once, and its release waits
/// for none, as in NCCL.
Stream& owner_on(int device) {
  static std::array<Stream*, kDeviceCount> streams = [] {
    std::array<Stream*, kDeviceCount> made{};
    for (int each = 0; each < kDeviceCount; ++each) {
      made[static_cast<size_t>(each)] = &new_stream(each);
    }
    return made;
  }();
  return *streams.at(static_cast<size_t>(device));
}

}  // namespace

void* Memory::allocate(int device, size_t bytes) {
  void* data = sim::allocate(owner_on(device), bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  allocated_.insert(data);
  return data;
}

void Memory::release(void* data) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [handle, each] : registrations_) {
      if (each.data != data) continue;
      throw Misuse(ncclInvalidUsage, "ncclMemFree got memory that " + each.communicator->name() +
                                         " has registered.\nwhy: NCCL still uses it.\nfix: "
                                         "deregister it before.");
    }
    if (allocated_.erase(data) == 0) {
      throw Misuse(ncclInvalidArgument,
                   "ncclMemFree got an address that ncclMemAlloc has not returned.\nwhy: it was "
                   "freed before, or is of another allocator.\nfix: free memory once, where it is "
                   "from.");
    }
  }
  sim::release(data);
}

void* Memory::add(const void* data, const Communicator& communicator, bool is_window) {
  const std::lock_guard<std::mutex> lock(mutex_);
  void* handle = reinterpret_cast<void*>(++last_handle_);
  registrations_[handle] = {data, &communicator, is_window};
  return handle;
}

void Memory::remove(void* handle, const Communicator& communicator, bool is_window) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = registrations_.find(handle);
  if (found != registrations_.end() && found->second.communicator == &communicator &&
      found->second.is_window == is_window) {
    registrations_.erase(found);
    return;
  }
  throw Misuse(ncclInvalidArgument,
               communicator.name() +
                   " deregisters memory that it has not registered.\nwhy: the handle is of no "
                   "registration of this communicator.\nfix: deregister once, with the same "
                   "communicator and function.");
}

void Memory::remove_all(const Communicator& communicator) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto each = registrations_.begin(); each != registrations_.end();) {
    each =
        each->second.communicator == &communicator ? registrations_.erase(each) : std::next(each);
  }
}

Memory& memory() {
  static auto* made = new Memory;  // threads may use it while the process ends
  return *made;
}

}  // namespace farandole::sim::nccl
